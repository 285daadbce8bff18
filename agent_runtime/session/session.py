"""A session, which is an agent's conversation with the model about files, and the registry of a service's sessions."""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Literal

from agent_runtime.apply.pipeline import Applier
from agent_runtime.errors import BadRequest, SessionBusy, SessionMissing, Stale, TooLarge, TooManyRequests
from agent_runtime.files import MAX_EDIT_BYTES, check_size
from agent_runtime.llm.interface import ChatModel, ChatRequest, EncodedPrompt
from agent_runtime.request_context import NO_PROGRESS, Principal, ProgressListener, RequestContext, Timings
from agent_runtime.session.files import ReadFile, SeenFile, SessionFiles
from agent_runtime.session.prompt import HistoryMessage, PromptLayout, SessionPrompt
from agent_runtime.types import ApplyRequest, ApplyResult, OnConflict, PatchRequest, ReuseName, Usage, sum_usage
from agent_runtime.workspace.index import TokenIndex
from agent_runtime.workspace.workspace import Workspace, write_if_merged
from repo_cache.errors import TokenizerError
from repo_cache.types import FileTokens

PREAMBLE = "You are a careful programmer. You are shown files of a project, and answer questions about them."
"""The default system message. It stays constant, so that the KV after it can be reused."""

MAX_BYTES_A_TOKEN = 64
"""No text has more bytes per token on average. Files above this ratio to the context are refused untokenised."""

MAX_ANSWER_TOKENS = 1024
"""Default limit of an answer."""


@dataclass(frozen=True, slots=True)
class SessionAnswer:
    """The model's answer to one question.

    finish_reason: `length` if the token limit or the end of the context cut the answer. timings: milliseconds;
    `read_ms` for reading the files, `layout_ms` for laying out the prompt, `prefill_ms` and `decode_ms` of the model,
    `total_ms`. files: those that are new, changed or gone since the last question. noted: files that the prompt still
    shows in their first version, followed by notes on their changes (`balanced`).
    """

    text: str
    finish_reason: Literal["stop", "length"]
    usage: Usage
    timings: dict[str, float]
    files: tuple[SeenFile, ...] = ()
    noted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SessionState:
    """A session as a client sees it. `usage` is that of all questions and edits, `turns` that of each question.

    prompt_tokens: length of the last question's prompt.
    """

    id: str
    workspace: str | None
    reuse: ReuseName
    files: tuple[SeenFile, ...]
    messages: tuple[HistoryMessage, ...]
    usage: Usage
    turns: tuple[Usage, ...] = field(default=())
    prompt_tokens: int = 0


class ServerSession:
    """Keeps the files that the model is shown and the conversation so far.

    A question shows the files in their current version. One call runs at a time: a second one raises SessionBusy,
    since a conversation has an order. A call that fails leaves the conversation unchanged. Reading needs no model.
    """

    def __init__(
        self,
        applier: Applier,
        chat: Callable[[], ChatModel],
        *,
        workspace: Workspace | None = None,
        index: TokenIndex | None = None,
        reuse: ReuseName = "exact",
        preamble: str = PREAMBLE,
        salt: str = "",
        workspace_name: str | None = None,
    ) -> None:
        """`chat` returns the model, or raises ModelUnavailable. `index` may hold the tokens of the workspace's files.

        `reuse`: how prompts follow changes of files (docs/reuse.md). `salt`: as in `agent_runtime.types.Options`.
        """
        self.id = secrets.token_urlsafe(16)
        self.reuse = reuse
        self.workspace = workspace
        self.workspace_name = workspace_name
        self._applier, self._chat = applier, chat
        self._preamble, self._salt = preamble, salt
        self._files = SessionFiles(workspace, index)
        self._context: PromptLayout | None = None
        self._messages: tuple[HistoryMessage, ...] = ()
        self._turns: tuple[Usage, ...] = ()
        self._usage = Usage()
        self._prompt_tokens = 0
        self._lock = threading.Lock()
        self._closed = False

    @property
    def is_busy(self) -> bool:
        """Whether a call is running."""
        return self._lock.locked()

    def read(
        self,
        paths: Iterable[str] = (),
        *,
        texts: Mapping[str, str] | None = None,
        forget: Iterable[str] = (),
        with_text: bool = False,
    ) -> list[ReadFile]:
        """Add workspace files, and texts under paths of their own, and remove the files to `forget`: all or none.

        Returns the files that were added; `state` says whether each has changed since it was last read or shown.
        Raises FileMissing, OutsideRoot, BadFile if a file is not text, TooLarge if the files exceed the limits.
        """
        with self._lock_call():
            return self._files.read(paths, texts or {}, forget=forget, with_text=with_text)

    def ask(
        self,
        question: str,
        *,
        max_tokens: int | None = None,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int = 0,
        stop: Iterable[str] = (),
        clock: str = "",
        prediction: str | None = None,
        context: RequestContext | None = None,
        progress: ProgressListener = NO_PROGRESS,
    ) -> SessionAnswer:
        """Ask the model, which sees the files in their current version and the conversation.

        `clock` is text that changes with every turn, such as the time; it stands directly before the question, so that
        nothing before it is computed again. Raises TooLarge if files, conversation and question exceed the context, and
        what `ChatModel.answer` raises.
        """
        if not question.strip():
            raise BadRequest("the question is empty", field="question")
        check_size(len(question), "the question", MAX_EDIT_BYTES)
        with self._lock_call():
            chat = self._chat()
            timings = Timings()
            with timings.phase("read"):
                files, seen = self._files.refresh()
                _check_may_fit(self._files.num_bytes, chat)
            with timings.phase("layout"):
                prompt = self._build_prompt(chat, files, question, clock)
            request = ChatRequest(
                prompt=EncodedPrompt(prompt.token_ids, prompt.to_reuse()),
                max_tokens=max_tokens or MAX_ANSWER_TOKENS,
                temperature=temperature,
                top_p=top_p,
                seed=seed,
                stop=tuple(stop),
                prediction=prediction,
                salt=self._salt,
            )
            answer = chat.answer(request, self._name_session(context), progress)
            timings.add(answer.timings)
            self._files.mark_shown()
            self._messages += (HistoryMessage("user", question), HistoryMessage("assistant", answer.text))
            self._prompt_tokens = answer.usage.prompt
            self._turns += (answer.usage,)
            self._usage = sum_usage([self._usage, answer.usage])
            return SessionAnswer(answer.text, answer.finish_reason, answer.usage, timings.total(), seen, prompt.noted)

    def apply(
        self,
        edit: str,
        *,
        path: str | None = None,
        write: bool = False,
        expected_sha256: str | None = None,
        base_sha256: str | None = None,
        on_conflict: OnConflict = "refuse",
        prediction: str | None = None,
        context: RequestContext | None = None,
        progress: ProgressListener = NO_PROGRESS,
        **options: Any,
    ) -> ApplyResult:
        """Merge an edit into one file, or without `path` into the files that it names; `options` as in `Options`.

        With `write`, the merged files are written, all or none; texts that a client put in are replaced in the session.
        Raises what `Applier.apply` and `Workspace.write` raise, and Stale if the file is not the expected one.
        """
        context, options = self._name_session(context), self._merge_options(options)
        with self._lock_call():
            if path is None:
                if (expected_sha256, base_sha256, prediction) != (None, None, None):
                    of_one = "expected_sha256, base_sha256 and prediction are of one file: name it by 'path'"
                    raise BadRequest(of_one, field="path")
                result = self._applier.apply_patch(
                    PatchRequest(edit, **options), self._files.read_data_if_there, context, progress
                )
            else:
                original = self._files.read_data(path)
                _check_hash(original, path, expected_sha256)
                base = self._files.find_base(path, base_sha256, original)
                request = ApplyRequest(original, edit, path, prediction, base, on_conflict, **options)
                result = self._applier.apply(request, context, progress)
            self._usage = sum_usage([self._usage, result.usage])
            return self._write_result(result, context) if write else result

    def state(self) -> SessionState:
        """Return the state of the session; does not wait for a running call."""
        return SessionState(
            self.id,
            self.workspace_name,
            self.reuse,
            self._files.list_states(),
            self._messages,
            self._usage,
            self._turns,
            self._prompt_tokens,
        )

    def close(self) -> None:
        """Refuse further calls; a running one continues."""
        self._closed = True

    def _name_session(self, context: RequestContext | None) -> RequestContext:
        return replace(context or RequestContext(), affinity=self.id)

    def _merge_options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Complete an edit's options: the session's salt, root and, unless given, reuse mode."""
        root = str(self.workspace.root) if self.workspace is not None else ""
        reuse = None if self.reuse == "balanced" else self.reuse  # a single edit has no earlier turn
        return {**given, "salt": self._salt, "root": root, "reuse": given.get("reuse") or reuse}

    def _build_prompt(
        self, chat: ChatModel, files: Mapping[str, FileTokens | str], question: str, clock: str
    ) -> SessionPrompt:
        if self._context is None:
            self._context = PromptLayout(chat.text.template, chat.text.tokenizer, preamble=self._preamble)
        try:
            prompt = self._context.build_prompt(files, self._messages, question, self.reuse, clock=clock)
        except TokenizerError as error:  # SmolLM2 has no token for some control characters
            raise BadRequest(f"model {chat.name} cannot read this question: {error}", field="question") from error
        _check_fits(prompt, chat)
        return prompt

    def _write_result(self, result: ApplyResult, context: RequestContext) -> ApplyResult:
        """Write a merged result: workspace files first, since only they can fail; then texts of the session."""
        own = [file for file in result.files if self._files.is_own(file.path)]
        if self.workspace is not None and not own:
            return write_if_merged(self.workspace, result, context.cancel)
        if result.status != "merged":
            return result
        if self.workspace is not None:
            self.workspace.write([file for file in result.files if file.status == "merged" and file not in own])
        for file in own:
            if file.action in ("delete", "move"):
                self._files.put(file.path, None)
            if file.action != "delete":
                self._files.put(file.move_to or file.path, file.data)
        return replace(result, written=True)

    @contextmanager
    def _lock_call(self) -> Iterator[None]:
        if not self._lock.acquire(blocking=False):
            raise SessionBusy("the session works on another call; wait for its answer, or begin a session of its own")
        try:
            if self._closed:
                raise SessionMissing("the session has ended; begin a new one")
            yield
        finally:
            self._lock.release()


def _check_may_fit(num_bytes: int, chat: ChatModel) -> None:
    if num_bytes > MAX_BYTES_A_TOKEN * chat.max_seq_len:
        raise TooLarge(
            f"the session's files have {num_bytes / 1e6:.1f} MB, which is far more than the context of "
            f"{chat.max_seq_len} tokens; have the session forget files"
        )


def _check_fits(prompt: SessionPrompt, chat: ChatModel) -> None:
    num_tokens = prompt.parts[-1].end
    if num_tokens < chat.max_seq_len:
        return
    sizes = {"file": 0, "history": 0}
    before = 0
    for part in prompt.parts:
        if part.kind in sizes:
            sizes[part.kind] += part.end - before
        before = part.end
    raise TooLarge(
        f"the prompt's {num_tokens} tokens ({sizes['file']} of files, {sizes['history']} of the conversation) leave no "
        f"room for an answer in the context of {chat.max_seq_len}; have the session forget files, begin a new one, or "
        "start with a larger --context"
    )


def _check_hash(data: bytes, path: str, expected_sha256: str | None) -> None:
    current = sha256(data).hexdigest()
    if expected_sha256 not in (None, current):
        raise Stale(f"{path} is not what the edit was made for; read it again", current_sha256=current)


MAX_OF_TENANT = 32
MAX_IN_ALL = 256
"""Limit of all tenants together. A new session evicts the least recently used one."""

IDLE_SECONDS = 3600.0
"""A session that is not used for this long is ended."""


@dataclass(slots=True)
class _LiveSession:
    session: ServerSession
    tenant: str
    used_at: float


class SessionRegistry:
    """Sessions by id; a tenant sees only its own. Thread-safe."""

    def __init__(
        self,
        max_of_tenant: int = MAX_OF_TENANT,
        max_in_all: int = MAX_IN_ALL,
        idle_seconds: float = IDLE_SECONDS,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_of_tenant, self._max_in_all = max_of_tenant, max_in_all
        self._idle_seconds, self._now = idle_seconds, now
        self._lock = threading.Lock()
        self._by_id: OrderedDict[str, _LiveSession] = OrderedDict()
        """In order of use, the most recent last."""

    def add(self, session: ServerSession, principal: Principal) -> None:
        """Add a session; raises TooManyRequests if there is no room and all that could be evicted are busy."""
        with self._lock:
            self._end_idle()
            own = [kept for kept in self._by_id.values() if kept.tenant == principal.tenant]
            if len(own) >= self._max_of_tenant:
                self._make_room(own)
            elif len(self._by_id) >= self._max_in_all:
                self._make_room(list(self._by_id.values()))
            self._by_id[session.id] = _LiveSession(session, principal.tenant, self._now())

    def get(self, session_id: str, principal: Principal) -> ServerSession:
        """Return a session by id, which counts as its use; raises SessionMissing."""
        with self._lock:
            self._end_idle()
            kept = self._by_id.get(session_id)
            if kept is None or kept.tenant != principal.tenant:
                raise SessionMissing("there is no such session (any more): those that nobody uses are ended; begin one")
            kept.used_at = self._now()
            self._by_id.move_to_end(session_id)
            return kept.session

    def remove(self, session_id: str, principal: Principal) -> None:
        """End a session; raises SessionMissing."""
        session = self.get(session_id, principal)
        with self._lock:
            self._end(session)

    def end_matching(self, matches: Callable[[ServerSession], bool]) -> None:
        """End all sessions that match, such as those of a workspace that was removed."""
        with self._lock:
            for kept in list(self._by_id.values()):
                if matches(kept.session):
                    self._end(kept.session)

    def __len__(self) -> int:
        return len(self._by_id)

    def _end_idle(self) -> None:
        for kept in list(self._by_id.values()):
            if kept.session.is_busy:
                continue
            if self._now() - kept.used_at <= self._idle_seconds:
                break
            self._end(kept.session)

    def _make_room(self, among: list[_LiveSession]) -> None:
        for kept in among:
            if not kept.session.is_busy:
                self._end(kept.session)
                return
        raise TooManyRequests(f"{len(among)} sessions are at work, which is the most; end one, or wait for an answer")

    def _end(self, session: ServerSession) -> None:
        session.close()
        self._by_id.pop(session.id, None)
