"""A model as the apply pipeline sees it: the task that it is given, and what it makes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from agent_runtime.chat.types import ChatModel
from agent_runtime.generation.watcher import Watcher
from agent_runtime.types import ApplyRequest, GivenScope, ScoredReading, Usage
from editor.types import Check, MergeOutcome, ParsedEdit

if TYPE_CHECKING:
    from engine.engine import EngineStats


@dataclass(frozen=True, slots=True)
class ModelMerge:
    r"""The model's whole file, with "\n" lines. `truncated` says that the token limit cut it.

    `timings`: `prompt_ms` to build the prompt, `prefill_ms` to the end of the pass that confirms the first tokens,
    `decode_ms` for the rest; `scope_ms` to find the regions, `score_ms` to score readings that were all in doubt, which
    `readings` are. `scope` is what the model was given of the file, `checks` are those that only whoever gave it can
    make.
    """

    text: str
    truncated: bool
    usage: Usage
    timings: dict[str, float]
    scope: GivenScope | None = None
    checks: tuple[Check, ...] = ()
    readings: tuple[ScoredReading, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """Which of a task's candidates a model holds for the likeliest.

    `number` is its index in `by_rule.candidates`, None where the model is in doubt and may not write. `readings` are
    those of them that were scored, in their order: all that the checks let pass. `timings` and `scope` as in
    `ModelMerge`.
    """

    number: int | None
    readings: tuple[ScoredReading, ...]
    usage: Usage
    timings: dict[str, float]
    scope: GivenScope | None = None


@dataclass(frozen=True, slots=True)
class ModelTask:
    r"""One edit of one file that a model is to decide.

    text: the file, with "\n" lines. edit: what `request.edit` was read as. by_rule: what the rules made of it, which
    tells where it can touch the file and how the answer is likely to read.
    """

    text: str
    request: ApplyRequest
    edit: ParsedEdit
    by_rule: MergeOutcome


class Merger(Protocol):
    """A model, as the apply pipeline sees it; any number of threads may use it at once."""

    @property
    def name(self) -> str:
        """The model's name in the catalogue, or its file's."""
        ...

    def merge(self, task: ModelTask, watcher: Watcher) -> ModelMerge:
        """Have the model write the task's file with its edit applied.

        Raises TooLarge where file, edit and answer do not fit the context; BadRequest on bad sampling values; Busy,
        Cancelled, DeadlinePassed, ModelFailed, or ModelUnavailable once it is closed.
        """
        ...

    def choose(self, task: ModelTask, watcher: Watcher) -> ModelChoice | ModelMerge:
        """Have the model choose among the task's candidates, one at least; in doubt, write the merge itself.

        It does not write where `min_certainty` refuses what a model wrote. Raises what `merge` raises.
        """
        ...

    def chat(self) -> ChatModel:
        """The same model, to be asked for answers in a chat."""
        ...

    def stats(self) -> EngineStats | None:
        """What the engine counts, None where there is none; waits for a pass of the model."""
        ...

    def close(self) -> None:
        """Take no more edits; those that are being merged fail."""
        ...
