"""Protocols of a merging and a chatting model, their tasks and results, and a slot for a model that loads later."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NoReturn, Protocol

from agent_runtime.errors import HunkError, ModelUnavailable, RulesOnly, Unsupported
from agent_runtime.request_context import ProgressListener, RequestContext
from agent_runtime.types import ApplyRequest, Draft, GivenScope, ReuseName, ScoredReading, Usage
from editor.types import Check, MergeOutcome, ParsedEdit, Substitutions

if TYPE_CHECKING:
    from agent_runtime.models.tokenizer import TokenizerBundle
    from agent_runtime.prompt.builder import ApplyPrompt
    from agent_runtime.telemetry.engine_metrics import EngineReport
    from engine.types import Reuse, ReuseMode


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message; `role` is a role of the model's chat template: system, user, assistant, tool."""

    role: str
    text: str


def _make_exact_reuse() -> Reuse:
    from engine.types import EXACT  # edits by rule do without the engine's types

    return EXACT


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt as token ids, such as a session's, and the KV that the engine may reuse for it."""

    token_ids: tuple[int, ...]
    reuse: Reuse = field(default_factory=_make_exact_reuse)


NO_MODEL_HINT = "the model is `none`: edits are merged by rules only; name a model to have it decide"

Prompt = tuple[ChatMessage, ...] | EncodedPrompt


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A request for one answer.

    max_tokens: limit of the answer; None: the room in the context, which is also the upper limit. The sampling
    parameters are the engine's (`engine.types.GenerationRequest`); temperature 0 is greedy. logprobs: number of
    likeliest tokens to return for each token (0: only its own log-probability; None: none). stop: texts that end the
    answer and are not part of it. prediction: the expected answer, which changes only the time. draft: `copy` drafts
    the answer from the prediction and the prompt, `none` decodes one token a pass. deadline_s: seconds until the
    request fails; None: the model's default. salt: as in `agent_runtime.types.Options`.
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
    """A token of an answer as bytes, its log-probability, and the likeliest tokens, best first."""

    token: bytes
    logprob: float
    top: tuple[tuple[bytes, float], ...] = ()


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """An answer. The finish reason `length`: the token limit or the end of the context cut it.

    `timings`: milliseconds; `prompt_ms` to build the prompt, `prefill_ms` to the end of the pass that confirmed the
    first tokens, `decode_ms` for the rest, `total_ms`.
    """

    text: str
    finish_reason: Literal["stop", "length"]
    usage: Usage
    timings: dict[str, float]
    logprobs: tuple[ChatTokenLogprob, ...] = ()


class ChatModel(Protocol):
    """A model that answers questions. Thread-safe."""

    @property
    def name(self) -> str:
        """The model's name in the catalogue, or the name of its file."""

    @property
    def text(self) -> TokenizerBundle:
        """The tokenizer and the chat template."""

    @property
    def max_seq_len(self) -> int:
        """Limit of prompt and answer together, in tokens."""

    def answer(self, request: ChatRequest, context: RequestContext, progress: ProgressListener) -> ChatAnswer:
        """Write the answer; the listener receives its text in pieces.

        Raises BadRequest if the chat template does not accept the messages or a parameter is invalid, TooLarge if the
        prompt leaves no room in the context, Busy, Cancelled, DeadlinePassed, ModelFailed, or ModelUnavailable once the
        model is closed.
        """


@dataclass(frozen=True, slots=True)
class ModelMerge:
    r"""The whole file as the model merged it, with "\n" lines. `truncated`: the token limit cut it.

    timings: `scope_ms` to find the regions, `prompt_ms` to build the prompt, `prefill_ms` to the end of the pass that
    confirmed the first tokens, `decode_ms` for the rest, `score_ms` if readings were scored before. scope: the part of
    the file that the model was given. checks: those that need the scope. readings: those that were scored, if none of
    them was chosen.
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
    """The candidate that a model chose. `timings` and `scope` as in `ModelMerge`.

    number: its index in `by_rule.candidates`; None if no candidate is likely enough and the model may not write.
    readings: the scored candidates, in their order: the first of those that pass the checks. confidence: the share of
    the chosen one in the weight of all; those that were not scored count as if they were as probable to the model.
    """

    number: int | None
    readings: tuple[ScoredReading, ...]
    usage: Usage
    timings: dict[str, float]
    scope: GivenScope | None = None
    confidence: float | None = None


@dataclass(frozen=True, slots=True)
class ModelTask:
    r"""One edit of one file that a model has to decide.

    text: the file, with "\n" lines. edit: `request.edit`, parsed. by_rule: the result of the rules, which shows the
    places that the edit can touch, and likely answers.
    """

    text: str
    request: ApplyRequest
    edit: ParsedEdit
    by_rule: MergeOutcome


class Merger(Protocol):
    """A model as the apply pipeline uses it. Thread-safe."""

    @property
    def name(self) -> str:
        """The model's name in the catalogue, or the name of its file."""

    def merge(self, task: ModelTask, context: RequestContext, progress: ProgressListener) -> ModelMerge:
        """Have the model write the task's file with its edit applied.

        Raises TooLarge if file, edit and answer do not fit the context, BadRequest for invalid sampling parameters,
        Busy, Cancelled, DeadlinePassed, ModelFailed, or ModelUnavailable once it is closed.
        """

    def choose(self, task: ModelTask, context: RequestContext, progress: ProgressListener) -> ModelChoice | ModelMerge:
        """Have the model choose one of the task's candidates, at least one; in doubt, it chooses none.

        If the request asks for that (`Options.writes_in_doubt`), it writes the merge then. Raises what `merge` raises.
        """

    def chat(self) -> ChatModel:
        """Return the same model for chats."""

    @property
    def fault(self) -> Exception | None:
        """What broke the model for good; None while it can answer. Never waits."""

    def reports(self) -> Sequence[EngineReport]:
        """Return the counts of each engine, none if there is none; waits for a step of the model."""

    def close(self) -> None:
        """Accept no more edits; running merges fail."""


def resolve_reuse_mode(asked: ReuseName | None, default: ReuseName) -> ReuseMode:
    """Return the reuse mode of a request, or the default; raises Unsupported for `balanced`.

    `balanced` keeps the old file in the prompt, followed by notes on its changes. A single edit has no earlier turn
    whose prompt could be kept.
    """
    name = asked or default
    if name == "balanced":
        raise Unsupported(
            "reuse 'balanced' is for sessions, which keep a file's old text and add what changed; for a single edit "
            "use 'exact', or 'fast', which takes over the file's unchanged parts approximately",
            field="reuse",
        )
    return name


def build_reuse(prompt: ApplyPrompt, mode: ReuseMode) -> Reuse:
    """Return the KV that the engine may reuse for the prompt: in approximate modes only that of parts of the file.

    The preamble is computed unless it is cached, so that it is exact for all later edits. The edit and the question are
    always computed: they are about this file, and a snippet that quotes the file would reuse its KV.
    """
    from engine.types import EXACT, Reuse

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
        if not all(change.before and not change.hint.pinned for change in changes):
            return ""
        pairs = [("\n".join(change.before), "\n".join(change.after)) for change in changes]
    else:
        return ""
    ended = ((old, f"{new}\n" if new else "") for old, new in pairs)
    return "".join(f"<<<<<<< SEARCH\n{old}\n=======\n{new}>>>>>>> REPLACE\n" for old, new in ended)


class ModelSlot:
    """A model that is loaded later; `get` raises ModelUnavailable until then."""

    def __init__(self, name: str, load: Callable[[], Merger]) -> None:
        self.name = name
        self._load = load
        self._merger: Merger | None = None
        self._fault: HunkError | None = None

    def get(self) -> Merger:
        """Return the model; raises ModelUnavailable while it loads, or the error of loading."""
        return self.get_loaded()

    def get_loaded(self) -> Merger:
        """Return the model if it is loaded; never waits, raises as `get` does."""
        if self._fault is not None:
            raise self._fault
        if self._merger is None:
            raise ModelUnavailable(f"model {self.name} is still being loaded; try again in some seconds")
        if self._merger.fault is not None:
            raise ModelUnavailable(f"model {self.name} broke down and has to be started anew: {self._merger.fault}")
        return self._merger

    def check_ready(self) -> None:
        """Raise what `get` raises, unless edits can be answered; never waits."""
        self.get_loaded()

    @property
    def has_broken_down(self) -> bool:
        """Whether the model was loaded and can answer nothing any more."""
        return self._merger is not None and self._merger.fault is not None

    def chat(self) -> ChatModel:
        """Return the model for chats; raises what `get` raises."""
        return self.get().chat()

    @property
    def is_ready(self) -> bool:
        """Whether the model is loaded and works."""
        return self._merger is not None and self._merger.fault is None and self._fault is None

    def reports(self) -> Sequence[EngineReport]:
        """Return the counts of each engine, none if there is none; waits for a step of the model."""
        return () if self._merger is None else self._merger.reports()

    def load(self) -> Merger:
        """Load the model now, in this thread."""
        self._merger = self._load()
        return self._merger

    def close(self) -> None:
        """Close the model, if it has been loaded."""
        if self._merger is not None:
            self._merger.close()

    def load_in_background(self, on_loaded: Callable[[], None], on_fault: Callable[[HunkError], None]) -> None:
        """Load the model in a new thread, and call `on_loaded` or `on_fault`."""

        def work() -> None:
            try:
                self.load()
            except Exception as error:  # noqa: BLE001 -- the outermost loop of this thread: nobody else would hear of it
                self._fault = error if isinstance(error, HunkError) else to_model_unavailable(self.name, error)
                on_fault(self._fault)
            else:
                on_loaded()

        threading.Thread(target=work, name="load-model", daemon=True).start()


class NoModel(ModelSlot):
    """Stands for a model where there is none: edits are merged by rules only, and nothing is loaded."""

    def __init__(self) -> None:
        super().__init__("none", self.get)

    @property
    def is_ready(self) -> bool:
        """Whether edits can be merged: the rules always work."""
        return True

    def get(self) -> NoReturn:
        """Raise RulesOnly."""
        raise RulesOnly(NO_MODEL_HINT)

    get_loaded = get

    def check_ready(self) -> None:
        """Do nothing: the rules are always ready."""

    def load_in_background(self, on_loaded: Callable[[], None], on_fault: Callable[[HunkError], None]) -> None:
        """Call `on_loaded`."""
        on_loaded()


def to_model_unavailable(name: str, error: Exception) -> ModelUnavailable:
    """Convert an unexpected error of loading."""
    return ModelUnavailable(f"model {name} cannot be loaded: {type(error).__name__}: {error}")


class ModelOnDemand(ModelSlot):
    """Loads the model in the first thread that needs it; others wait. After a failure the next call tries again."""

    def __init__(self, name: str, load: Callable[[], Merger]) -> None:
        super().__init__(name, load)
        self._loading = threading.Lock()

    def get(self) -> Merger:
        """Return the model; raises what loading raises."""
        with self._loading:
            if not self.is_ready:
                self._merger = None  # one that broke down is freed before it is loaded anew
                try:
                    return self.load()
                except HunkError:
                    raise
                except Exception as error:  # a file that cannot be mapped, memory that is not there
                    raise to_model_unavailable(self.name, error) from error
        return self.get_loaded()

    def close(self) -> None:
        """Close the model and release it."""
        with self._loading:
            super().close()
            self._merger = None
