"""The environment of the model catalogue: folders, sources and defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import platformdirs

from agent_runtime.errors import BadRequest
from agent_runtime.prompt import FORMS
from agent_runtime.types import ReuseName

SOURCE_NAMES = ("hub", "registry")

DEFAULT_MODEL = "qwen2.5-coder-1.5b"
"""The catalogue's model that is right most often; the smaller ones are quicker."""

DEFAULT_CONTEXT = 16384
"""Tokens of prompt and answer together; the KV cache holds two of them (940 MB for the 1.5B model)."""

DEFAULT_NUM_SEQS = 64
"""Edits that share the model's passes; more wait."""

DEFAULT_SPAN_GIB = 1.0
"""Memory of a service for reusable KV: 37,000 tokens of the 1.5B model, 87,000 of the 0.5B."""

SMALL_SPAN_GIB = 0.25
"""The same of a service whose edits are exact where they do not ask for more."""

Dtype = Literal["bfloat16", "float16", "float32"]
Quantize = Literal["int8", "int4"]


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How a model is loaded: the type of its weights, the most tokens of prompt and answer together, the folder of a
    LoRA adapter (PEFT) to merge, and a scheme to store the weights in after that; how many edits it works on at once,
    and GiB of memory for their keys and values (None: for `kv_sequences` of the longest); whether an answer is to have
    the same bits whatever runs beside it, which takes longer; GiB of memory for KV that later edits may take over
    (`reuse`), and of disk that keeps it across starts, 0 for none; the device that it runs on.
    """

    dtype: Dtype = "bfloat16"
    context: int = DEFAULT_CONTEXT
    adapter: Path | None = None
    quantize: Quantize | None = None
    max_num_seqs: int = DEFAULT_NUM_SEQS
    kv_gib: float | None = None
    kv_sequences: int = 2
    batch_invariant: bool = False
    span_gib: float = 0.0
    span_disk_gib: float = 0.0
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class MergeOptions:
    """How a loaded model merges: the seconds that it may take an edit (None: as long as it takes), and what an edit
    that does not say takes of earlier ones.
    """

    deadline_s: float | None = None
    reuse: ReuseName = "exact"


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """`cache_dir` holds `models/`; `sources` are tried in this order.

    `prompt_form` names the form in which a model is asked, whichever it is; None: the one that the catalogue has.
    """

    cache_dir: Path
    sources: tuple[str, ...] = SOURCE_NAMES
    prompt_form: str | None = None

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> ModelSettings:
        """Reads `HUNK_CACHE`, `XDG_CACHE_HOME`, `HUNK_MODEL_SOURCES` and `HUNK_PROMPT_FORM`; raises BadRequest on a
        bad value.
        """
        sources = environ.get("HUNK_MODEL_SOURCES")
        return cls(
            cache_dir=_find_cache_dir(environ),
            sources=SOURCE_NAMES if sources is None else parse_sources(sources, field="HUNK_MODEL_SOURCES"),
            prompt_form=_parse_prompt_form(environ),
        )


def parse_sources(text: str, *, field: str) -> tuple[str, ...]:
    """`"registry,hub"` as names in order; raises BadRequest, naming `field`, on an unknown, double or missing one."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    unknown = [name for name in names if name not in SOURCE_NAMES]
    if unknown or not names or len(set(names)) != len(names):
        raise BadRequest(
            f"{field} is {text!r}: give one or both of {', '.join(SOURCE_NAMES)}, each once, separated by commas",
            field=field,
        )
    return names


def _parse_prompt_form(environ: Mapping[str, str]) -> str | None:
    name = environ.get("HUNK_PROMPT_FORM")
    if name is not None and name not in FORMS:
        raise BadRequest(
            f"HUNK_PROMPT_FORM is {name!r}: give one of {', '.join(FORMS)}, or leave it unset", field="HUNK_PROMPT_FORM"
        )
    return name


def _find_cache_dir(environ: Mapping[str, str]) -> Path:
    own = environ.get("HUNK_CACHE")
    if own is not None:
        folder = Path(own).expanduser()
        if not own.strip() or (folder.exists() and not folder.is_dir()):
            raise BadRequest(f"HUNK_CACHE is {own!r}: give a folder, which is made if need be", field="HUNK_CACHE")
        return folder.absolute()
    # The XDG specification has relative values ignored.
    xdg = Path(environ.get("XDG_CACHE_HOME", ""))
    return xdg / "hunk" if xdg.is_absolute() else platformdirs.user_cache_path("hunk", appauthor=False)
