"""Lays out a session's prompts so that their prefix stays the same from turn to turn."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from agent_runtime.errors import BadFile
from agent_runtime.prompt.builder import TextEncoder
from agent_runtime.prompt.chat_template import ChatTemplate, render_frame
from agent_runtime.session.changes import ChangeNotes, ChangeRates, FileCost, choose_order
from agent_runtime.types import ReuseName
from engine.reuse import PromptSegment, Reuse, ReuseMode
from repo_cache.incremental import count_equal_prefix
from repo_cache.token_encoder import FileVersion, TokenEncoder
from repo_cache.tokenizer import BPETokenizer
from repo_cache.types import FileTokens

HOT_BYTES = 16 << 20
"""Memory for texts and trees that are kept for the next version of a file."""

FILES_INTRO = "Files of the project. Notes further on may supersede lines of them; the latest note holds.\n"
"""The same in every mode, so that a change of the mode does not change the text before the files."""


@dataclass(frozen=True, slots=True)
class HistoryMessage:
    """One message of the conversation; `role` is a role of the chat template: user, assistant or tool."""

    role: str
    text: str


PartKind = Literal["preamble", "file", "history", "question"]


@dataclass(frozen=True, slots=True)
class PromptPart:
    """The prompt's tokens from the end of the part before up to `end`. `name` is a path or a message number."""

    kind: PartKind
    name: str
    end: int


@dataclass(frozen=True, slots=True)
class SessionPrompt:
    """The prompt of one turn.

    order: the files as they are ordered. noted: files in their first version, with notes on their changes. rebased:
    files that had notes and are written anew. num_kept: length of the prefix shared with the turn before, whose KV is
    cached unless it was evicted. mode: how it follows changes of files. `balanced` leaves a changed file as it was
    first sent and adds notes (`session.changes`); the other modes write the file anew, and `fast` and `turbo` have the
    engine reuse KV after the change.
    """

    segments: tuple[PromptSegment, ...]
    parts: tuple[PromptPart, ...]
    order: tuple[str, ...]
    noted: tuple[str, ...]
    rebased: tuple[str, ...]
    num_kept: int
    mode: ReuseName

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The whole prompt."""
        return tuple(number for segment in self.segments for number in segment.token_ids)

    def to_reuse(self) -> Reuse:
        """Return what the engine may reuse for this prompt.

        The question is always computed: KV of the same question, asked before a file changed, would carry conclusions
        from the old text.
        """
        mode: ReuseMode = "exact" if self.mode == "balanced" else self.mode
        allowed = Reuse.from_segments(self.segments, mode)
        if mode == "exact":
            return allowed
        return replace(allowed, recompute=((self.parts[-2].end, self.parts[-1].end),))


class PromptLayout:
    """Lays out the turns of one session in order; the same calls give the same prompts. Not thread-safe.

    A prompt is the preamble; the files, those least likely to change per token first; the conversation; the question.
    Notes and the clock stand directly before the question, and stay there in later turns, so that nothing moves.
    """

    def __init__(
        self,
        template: ChatTemplate,
        tokenizer: BPETokenizer,
        *,
        preamble: str = "",
        rebase_share: float | None = None,
    ) -> None:
        """rebase_share: a file whose notes exceed this share of its tokens is written anew (None: `REBASE_SHARE`).

        Raises CorruptModel if the chat template cannot hold a conversation.
        """
        self._template, self._tokenizer = template, tokenizer
        self._preamble = preamble
        self._files = TextFileEncoder(tokenizer)
        self._rates = ChangeRates()
        self._notes = ChangeNotes(tokenizer, rebase_share)
        self._ids = _TextIdCache(tokenizer)
        self._latest: dict[str, FileTokens] = {}
        self._shown: dict[str, FileTokens] = {}
        """The version of each file that the prompt shows, in the prompt's order."""
        self._messages: tuple[HistoryMessage, ...] = ()
        """The messages of the last prompt; the question is the last."""
        self._clocks: dict[int, str] = {}
        """The clock before a message, by the message's number."""
        self._last_ids: NDArray[np.uint32] = np.zeros(0, np.uint32)
        self._num_after_files = 0
        render_frame(template, ["system", "user", "assistant", "user"])

    def build_prompt(
        self,
        files: Mapping[str, FileTokens | str],
        history: Sequence[HistoryMessage],
        question: str,
        mode: ReuseName = "exact",
        *,
        clock: str = "",
        role: str = "user",
    ) -> SessionPrompt:
        """Return the prompt of the next turn.

        `files` are the current versions to show: tokens of the repository cache, or text. `role` is that of the
        question, "tool" for a tool's result. `clock` is text that changes with every turn. Raises BadFile if a text
        cannot be encoded.
        """
        now = {
            path: self._files.encode(path, file, self._latest.get(path)) if isinstance(file, str) else file
            for path, file in files.items()
        }
        changed = {path for path, one in now.items() if not _is_same(one, self._latest.get(path, one))}
        self._rates.observe(now, changed)
        messages = (*history, HistoryMessage(role, question))
        num_shared = _count_shared(self._messages, messages[:-1])
        self._clocks = {number: text for number, text in self._clocks.items() if number < num_shared}
        self._notes.forget_from(num_shared)
        self._latest, self._messages = now, messages
        if clock:
            self._clocks[len(history)] = clock
        over = self._notes.find_over_share(self._shown, now) if mode == "balanced" else frozenset(self._shown)
        rebased = self._choose_versions(over)
        noted = self._notes.add(len(history), self._shown, now)
        return self._assemble(mode, noted, rebased)

    def _choose_versions(self, over: Iterable[str]) -> tuple[str, ...]:
        """Choose the versions and the order of files; return those that had notes and are written anew.

        After the first change everything is prefilled anyway, so every file there is written in its current version.
        """
        over, now = set(over), self._latest
        order = [path for path in self._shown if path in now]
        num_cached, is_cached = 0, True
        versions: dict[str, FileTokens] = {}
        for path, was in self._shown.items():
            if path not in now:
                is_cached = False
                continue
            is_same = _is_same(was, now[path]) or (is_cached and path not in over)
            versions[path] = was if is_same else now[path]
            if is_cached:
                num_cached += _estimate_tokens(path, was) if is_same else _count_common_tokens(was, now[path])
                is_cached = is_same
        costs = {
            path: FileCost(_estimate_tokens(path, versions.get(path, one)), self._rates.estimate_chance(path))
            for path, one in now.items()
        }
        new_order = choose_order(order, costs, num_cached=num_cached, num_after=self._num_after_files)
        is_cached, shown = True, {}
        for place, path in enumerate(new_order):
            is_cached = is_cached and place < len(order) and order[place] == path
            shown[path] = versions[path] if is_cached else now[path]
        rebased = tuple(path for path, one in shown.items() if not _is_same(one, self._shown.get(path, one)))
        had_notes = self._notes.paths
        self._shown = shown
        self._notes.drop({path for path in had_notes if path not in shown or path in rebased})
        return tuple(path for path in rebased if path in had_notes)

    def _assemble(self, mode: ReuseName, noted: tuple[str, ...], rebased: tuple[str, ...]) -> SessionPrompt:
        messages = self._messages
        # The files stand at the beginning of the user's first message.
        own = [] if messages[0].role == "user" else ["user"]
        pieces = render_frame(self._template, ["system", *own, *(message.role for message in messages)])
        between = (pieces[2:] if own else ["", *pieces[2:]])[:-1]
        self._ids.start_prompt()
        made = _Assembly()
        made.add("preamble", "", [self._encode(pieces[0], self._preamble)])
        made.add("preamble", "", [self._encode(pieces[1], FILES_INTRO)])
        for path, tokens in self._shown.items():
            last = tokens.token_ids[-1:]
            ends_line = not len(last) or self._tokenizer.decode(last.tolist()).endswith("\n")
            made.add("file", path, make_file_segments(self._tokenizer, path, tokens, ends_line=ends_line))
        num_before = made.num_tokens
        for number, message in enumerate(messages):
            texts = (*self._notes.list_before(number), self._clocks.get(number, ""), message.text)
            segment = self._encode(between[number], *texts)
            if number < len(messages) - 1:
                made.add("history", str(number), [segment])
            else:
                end = self._ids.encode_template(pieces[-1])
                made.add("question", str(number), [PromptSegment((*segment.token_ids, *end))])
        self._num_after_files = made.num_tokens - num_before
        return SessionPrompt(
            segments=tuple(made.segments),
            parts=tuple(made.parts),
            order=tuple(self._shown),
            noted=noted,
            rebased=rebased,
            num_kept=self._remember(made.segments),
            mode=mode,
        )

    def _encode(self, template_text: str, *texts: str) -> PromptSegment:
        """Encode text of the chat template and other texts, each apart, so that no token crosses a border."""
        ids = [*self._ids.encode_template(template_text), *(one for text in texts for one in self._ids.encode(text))]
        return PromptSegment(tuple(ids))

    def _remember(self, segments: Sequence[PromptSegment]) -> int:
        """Keep the prompt's ids; return the length of the prefix shared with the last prompt."""
        token_ids = np.array([number for segment in segments for number in segment.token_ids], np.uint32)
        shorter = min(len(token_ids), len(self._last_ids))
        num_kept = count_equal_prefix(token_ids[:shorter], self._last_ids[:shorter])
        self._last_ids = token_ids
        return num_kept


class TextFileEncoder:
    """Makes `FileTokens` from texts; only the change is encoded in a file's next version."""

    def __init__(self, tokenizer: BPETokenizer) -> None:
        self._contents = TokenEncoder(tokenizer, None, HOT_BYTES)

    def encode(self, path: str, text: str, before: FileTokens | None) -> FileTokens:
        """Return the tokens of a text. `before` are those of the file's last version. Raises BadFile if it has none."""
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            raise BadFile(f"{path} holds a lone surrogate at character {error.start}, which is not text") from None
        (made,) = self._contents.encode([FileVersion(path, data, sha256(data).hexdigest(), before)], in_bulk=False)
        if made.tokens is None:
            raise BadFile(f"{path} cannot be encoded: {made.reason}")
        return made.tokens


class _TextIdCache:
    """Token ids of the texts of the last prompt and of this one; each is encoded once."""

    def __init__(self, encoder: TextEncoder) -> None:
        self._encoder = encoder
        self._last: dict[tuple[str, bool], list[int]] = {}
        self._used: dict[tuple[str, bool], list[int]] = {}

    def encode(self, text: str) -> list[int]:
        """Encode a text in which nothing is a control token."""
        return self._look_up(text, is_template=False)

    def encode_template(self, text: str) -> list[int]:
        """Encode text of the chat template."""
        return self._look_up(text, is_template=True)

    def start_prompt(self) -> None:
        """Begin a new prompt: texts that the last one did not use are forgotten."""
        self._last, self._used = self._used, {}

    def _look_up(self, text: str, *, is_template: bool) -> list[int]:
        ids = self._used.get((text, is_template), self._last.get((text, is_template)))
        if ids is None:
            ids = self._encoder.encode_template(text) if is_template else self._encoder.encode(text)
        self._used[text, is_template] = ids
        return ids


@dataclass(slots=True)
class _Assembly:
    """The segments and parts of a prompt as it is built."""

    segments: list[PromptSegment] = field(default_factory=list)
    parts: list[PromptPart] = field(default_factory=list)
    num_tokens: int = 0

    def add(self, kind: PartKind, name: str, segments: Iterable[PromptSegment]) -> None:
        """Append one part; empty segments, and a part without tokens, are left out."""
        before = self.num_tokens
        for segment in segments:
            if segment.token_ids:
                self.segments.append(segment)
                self.num_tokens += len(segment.token_ids)
        if self.num_tokens > before:
            self.parts.append(PromptPart(kind, name, self.num_tokens))


def make_file_segments(encoder: TextEncoder, path: str, tokens: FileTokens, *, ends_line: bool) -> list[PromptSegment]:
    """Return a file between a line that names it and one that ends it, a segment for each of the cache's spans.

    `ends_line`: whether the file ends with a newline, or is empty. The path is encoded as plain text.
    """
    head, tail = f"<file path={json.dumps(path, ensure_ascii=False)}>\n", "</file>\n"
    ids = tokens.token_ids.tolist()
    body = [PromptSegment(ids[start:end]) for start, end in pairwise([0, *tokens.spans.ends.tolist()])]
    return [
        PromptSegment(tuple(encoder.encode(head))),
        *body,
        PromptSegment(tuple(encoder.encode(tail if ends_line else f"\n{tail}"))),
    ]


def _estimate_tokens(path: str, tokens: FileTokens) -> int:
    """Estimate a file's tokens in the prompt; the lines around it are about ten tokens and its path."""
    return len(tokens) + 10 + len(path) // 3


def _count_shared(first: Sequence[HistoryMessage], second: Sequence[HistoryMessage]) -> int:
    """Return the length of the common prefix of two conversations."""
    for number, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return number
    return min(len(first), len(second))


def _count_common_tokens(one: FileTokens, other: FileTokens) -> int:
    """Return the length of the common prefix of two versions of a file."""
    shorter = min(len(one), len(other))
    return count_equal_prefix(one.token_ids[:shorter], other.token_ids[:shorter])


def _is_same(one: FileTokens, other: FileTokens) -> bool:
    return one.content_hash == other.content_hash
