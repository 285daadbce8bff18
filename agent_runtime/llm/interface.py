"""Protocols of a merging and a chatting model, their tasks and results, and a slot for a model that loads later."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from agent_runtime.errors import HunkError, ModelUnavailable, Unsupported
from agent_runtime.request_context import ProgressListener, RequestContext
from agent_runtime.types import ApplyRequest, Draft, GivenScope, ReuseName, ScoredReading, Usage
from editor.types import Check, MergeOutcome, ParsedEdit, Replacement, Substitutions
from engine.reuse import EXACT, Reuse, ReuseMode

if TYPE_CHECKING:
    from agent_runtime.models.tokenizer import TokenizerBundle
    from agent_runtime.prompt import ApplyPrompt
    from engine.engine import EngineStats


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message; `role` as the model's chat template knows it: system, user, assistant, tool."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class ReadyPrompt:
    """A prompt that is laid out already, as a session's is, and what the engine may take over for it."""

    token_ids: tuple[int, ...]
    reuse: Reuse = EXACT


Prompt = tuple[ChatMessage, ...] | ReadyPrompt


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """One answer to be written.

    max_tokens: of the answer; None, and what is more than that: as many as the context has room for. The sampling is
    the engine's (`engine.types.GenerationRequest`); temperature 0 is greedy. logprobs: of each token, with so many of
    the likeliest (0: its own only). stop: texts that end the answer and are not part of it. prediction: what the
    answer is expected to be, which changes nothing but the time that it takes. draft: `copy` guesses the answer from
    the prediction and the prompt, `none` writes a token a pass. deadline_s: seconds from now after which it fails;
    None: what the model was opened with. salt: as in `agent_runtime.types.Options`.
    """

    prompt: Prompt
    max_tokens: int | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None
    seed: int = 0
    stop: tuple[str, ...] = ()
    prediction: str | None = None
    draft: Draft = "copy"
    deadline_s: float | None = None
    salt: str = ""


@dataclass(frozen=True, slots=True)
class ChatTokenLogprob:
    """One token of an answer as bytes, the logarithm of its probability, and the likeliest ones, best first."""

    token: bytes
    logprob: float
    top: tuple[tuple[bytes, float], ...] = ()


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """A whole answer; `length` says that the token limit or the context's end cut it.

    `timings`: milliseconds, `prompt_ms` to lay the prompt out, `prefill_ms` to the end of the pass that gave the first
    tokens, `decode_ms` for the rest, `total_ms`.
    """

    text: str
    finish_reason: Literal["stop", "length"]
    usage: Usage
    timings: dict[str, float]
    logprobs: tuple[ChatTokenLogprob, ...] = ()


class ChatModel(Protocol):
    """A model that answers; any number of threads may ask it at once."""

    @property
    def name(self) -> str:
        """The model's name in the catalogue, or its file's."""
        ...

    @property
    def text(self) -> TokenizerBundle:
        """Its tokenizer and its chat template."""
        ...

    @property
    def max_seq_len(self) -> int:
        """Tokens of prompt and answer together."""
        ...

    def answer(self, request: ChatRequest, context: RequestContext, progress: ProgressListener) -> ChatAnswer:
        """Write the answer; the listener receives its text in pieces, which add up to the answer's.

        Raises BadRequest where the chat template does not take the messages or a number makes no sense, TooLarge where
        the prompt leaves no room in the context; Busy, Cancelled, DeadlinePassed, ModelFailed, or ModelUnavailable once
        the model is closed.
        """
        ...


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

    def merge(self, task: ModelTask, context: RequestContext, progress: ProgressListener) -> ModelMerge:
        """Have the model write the task's file with its edit applied.

        Raises TooLarge where file, edit and answer do not fit the context; BadRequest on bad sampling values; Busy,
        Cancelled, DeadlinePassed, ModelFailed, or ModelUnavailable once it is closed.
        """
        ...

    def choose(self, task: ModelTask, context: RequestContext, progress: ProgressListener) -> ModelChoice | ModelMerge:
        """Have the model choose among the task's candidates, one at least; in doubt, write the merge itself.

        It does not write where `min_certainty` refuses what a model wrote. Raises what `merge` raises.
        """
        ...

    def chat(self) -> ChatModel:
        """The same model, to be asked for answers in a chat."""
        ...

    def stats(self) -> EngineStats | None:
        """Return the engine's statistics, None if there is no engine; waits for a step of the model."""
        ...

    def close(self) -> None:
        """Take no more edits; those that are being merged fail."""
        ...


def resolve_reuse_mode(asked: ReuseName | None, otherwise: ReuseName) -> ReuseMode:
    """Return the reuse mode of a request, or the default; raises Unsupported for `balanced`.

    `balanced` keeps the old file in the prompt and tells what changed behind it. One edit has no earlier turn whose
    prompt could be kept.
    """
    name = asked or otherwise
    if name == "balanced":
        raise Unsupported(
            "reuse 'balanced' is for sessions, which keep a file's old text and add what changed; for a single edit "
            "use 'exact', or 'fast', which takes over the file's unchanged parts approximately",
            field="reuse",
        )
    return name


def reuse_of(prompt: ApplyPrompt, mode: ReuseMode) -> Reuse:
    """Return which KV the engine may reuse for the prompt: in approximate modes that of parts of the file only.

    The preamble is run where it is not cached, so that it is exact for all edits after this one. The edit and the
    question are run always: they are about this very file, and a snippet that quotes the file would take its KV.
    """
    if mode == "exact":
        return EXACT
    first, end = prompt.file_at
    return Reuse(mode, prompt.segment_ends, recompute=((0, first), (end, len(prompt.token_ids))))


def render_blocks(edit: ParsedEdit) -> str:
    """Write one file's edit as SEARCH/REPLACE blocks for a model to read; "" if it does not quote what it changes."""
    changes = edit.changes
    if isinstance(changes, Substitutions):
        pairs = [(item.old, item.new) for item in changes.items]
    elif isinstance(changes, tuple):
        pairs = [("\n".join(change.before), "\n".join(change.after)) for change in changes]
        if not all(_quotes(change) for change in changes):
            return ""
    else:
        return ""
    blocks = (f"<<<<<<< SEARCH\n{old}\n=======\n{_line(new)}>>>>>>> REPLACE\n" for old, new in pairs)
    return "".join(blocks)


def _quotes(change: Replacement) -> bool:
    return bool(change.before) and not change.hint.pinned


def _line(text: str) -> str:
    return text + "\n" if text else ""


class ModelSlot:
    """A model that loads later; `get` raises ModelUnavailable until `load` has run."""

    def __init__(self, name: str, load: Callable[[], Merger]) -> None:
        self.name = name
        self._load = load
        self._merger: Merger | None = None
        self._fault: HunkError | None = None

    def get(self) -> Merger:
        """Return the model; raises ModelUnavailable while it loads, or the error of loading."""
        return self.get_loaded()

    def get_loaded(self) -> Merger:
        """The model if it is there already; never waits, raises as `get` does."""
        if self._fault is not None:
            raise self._fault
        if self._merger is None:
            raise ModelUnavailable(f"model {self.name} is still being loaded; try again in some seconds")
        return self._merger

    def chat(self) -> ChatModel:
        """The model, to be asked for answers in a chat; raises what `get` raises."""
        return self.get().chat()

    @property
    def is_ready(self) -> bool:
        """Whether the model is loaded."""
        return self._merger is not None and self._fault is None

    def stats(self) -> EngineStats | None:
        """Return the engine's statistics, None if there is no engine; waits for a step of the model."""
        return None if self._merger is None else self._merger.stats()

    def load(self) -> Merger:
        """Load the model now, in this thread."""
        self._merger = self._load()
        return self._merger

    def close(self) -> None:
        """Close the model, if it has been loaded."""
        if self._merger is not None:
            self._merger.close()

    def load_in_background(self, on_loaded: Callable[[], None], on_fault: Callable[[HunkError], None]) -> None:
        """Load in a thread of its own and tell how it ended."""

        def work() -> None:
            try:
                self.load()
            except Exception as error:  # noqa: BLE001 -- the outermost loop of this thread: nobody else would hear of it
                self._fault = error if isinstance(error, HunkError) else to_model_unavailable(self.name, error)
                on_fault(self._fault)
            else:
                on_loaded()

        threading.Thread(target=work, name="load-model", daemon=True).start()


def to_model_unavailable(name: str, error: Exception) -> ModelUnavailable:
    """Convert an unexpected error of loading."""
    return ModelUnavailable(f"model {name} cannot be loaded: {type(error).__name__}: {error}")


class ModelOnDemand(ModelSlot):
    """Loads in the thread that needs the model first, and others wait for it. What fails is tried again."""

    def __init__(self, name: str, load: Callable[[], Merger]) -> None:
        super().__init__(name, load)
        self._loading = threading.Lock()

    def get(self) -> Merger:
        """The model; raises what loading raises."""
        with self._loading:
            if not self.is_ready:
                try:
                    return self.load()
                except HunkError:
                    raise
                except Exception as error:  # a file that cannot be mapped, memory that is not there
                    raise to_model_unavailable(self.name, error) from error
        return self.get_loaded()

    def close(self) -> None:
        """Close the model, and hold it no more."""
        with self._loading:
            super().close()
            self._merger = None
