"""The values of one apply: what is asked, what is answered. The JSON shapes of interfaces.md are made from these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from editor.types import Check, FormatName

Mode = Literal["auto", "deterministic", "model"]
Method = Literal["deterministic", "model"]
Certainty = Literal["certain", "scored", "model"]
Draft = Literal["copy", "none"]
"""`copy` drafts the answer from the file and the edit; `none` decodes a token a pass, for comparison."""
Status = Literal["merged", "rejected", "noop"]


@dataclass(frozen=True, slots=True)
class ApplyRequest:
    """One edit of one file. `original` is the file's bytes; `path` is its name, which tells the language."""

    original: bytes
    edit: str
    path: str = ""
    format: FormatName | Literal["auto"] = "auto"
    instruction: str = ""
    mode: Mode = "auto"
    temperature: float = 0.0
    seed: int = 0
    max_tokens: int | None = None
    draft: Draft = "copy"


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens by reason. `prompt` splits into `cached` + `reused_approximate` + `recomputed`; `forwards` counts passes.

    `drafted` = `accepted` + `rejected` counts draft tokens that were put before the model. `prefix_hit_rate` is
    `cached / prompt` in [0, 1].
    """

    prompt: int = 0
    cached: int = 0
    reused_approximate: int = 0
    recomputed: int = 0
    completion: int = 0
    drafted: int = 0
    accepted: int = 0
    rejected: int = 0
    forwards: int = 0
    prefix_hit_rate: float = 0.0


@dataclass(frozen=True, slots=True)
class FileResult:
    """What became of one file. `merged` is its whole text after the edit, a leading BOM included."""

    path: str
    merged: str
    diff: str
    method: Method
    rung: str
    candidates: int
    certainty: Certainty
    checks: tuple[Check, ...]
    sha256_before: str
    sha256_after: str


@dataclass(frozen=True, slots=True)
class ApplyResult:
    """The answer to one apply. A result that a check rejects still carries everything.

    `timings` holds milliseconds by phase (`parse_ms`, `merge_ms`, `prompt_ms`, `prefill_ms`, `decode_ms`,
    `verify_ms`) and `total_ms`; a phase that did not happen is absent.
    """

    status: Status
    file: FileResult
    usage: Usage
    timings: dict[str, float] = field(default_factory=dict)


StepHook = Callable[[int], None]
"""Called after every forward pass with the number of tokens written so far; may raise to cancel."""


@dataclass(frozen=True, slots=True)
class ModelMerge:
    r"""The model's whole file, with "\n" lines. `truncated` says that the token limit cut it.

    `timings`: `prompt_ms` to build the prompt, `prefill_ms` to the end of the pass that confirms the first tokens,
    `decode_ms` for the rest.
    """

    text: str
    truncated: bool
    usage: Usage
    timings: dict[str, float]


class Merger(Protocol):
    """A model, as the apply pipeline sees it."""

    @property
    def name(self) -> str:
        """The model's name in the catalogue, or its file's."""
        ...

    def merge(self, text: str, request: ApplyRequest, on_step: StepHook) -> ModelMerge:
        r"""Have the model write `text` (the file, "\n" lines) with the request's edit applied.

        Raises TooLarge where file, edit and answer do not fit the context; BadRequest on bad sampling values.
        """
        ...
