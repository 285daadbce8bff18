"""Lays out a session's prompts so that their prefix stays the same from turn to turn."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent_runtime.context.change_notes import ChangeNotes
from agent_runtime.context.file_order import ChangeRates, FileCost, choose_order
from agent_runtime.context.types import (
    ContextEncoder,
    ContextMode,
    HistoryMessage,
    PartKind,
    PromptPart,
    SessionPrompt,
    keyed,
    make_file_segments,
)
from agent_runtime.errors import BadFile
from agent_runtime.prompt.chat_template import ChatTemplate, render_frame
from engine.reuse import PromptSegment
from repo_cache.contents import Content, Contents
from repo_cache.incremental import num_equal
from repo_cache.tokenizer import BPETokenizer
from repo_cache.types import FileTokens


@dataclass(slots=True)
class _Assembly:
    """Segments in order, and what they are."""

    segments: list[PromptSegment] = field(default_factory=list)
    parts: list[PromptPart] = field(default_factory=list)
    num_tokens: int = 0

    def add(self, kind: PartKind, name: str, segments: Iterable[PromptSegment]) -> None:
        """One part; nothing where it has no tokens."""
        before = self.num_tokens
        for segment in segments:
            if segment.token_ids:
                self.segments.append(segment)
                self.num_tokens += len(segment.token_ids)
        if self.num_tokens > before:
            self.parts.append(PromptPart(kind, name, self.num_tokens))


class TextIdCache:
    """Ids of texts, encoded once for as long as each next prompt has them too."""

    def __init__(self, encoder: ContextEncoder) -> None:
        self._encoder = encoder
        self._last: dict[tuple[str, bool], list[int]] = {}
        self._used: dict[tuple[str, bool], list[int]] = {}

    def encode(self, text: str) -> list[int]:
        """Of a text in which nothing is a control token."""
        return self._look_up(text, ours=False)

    def encode_template(self, text: str) -> list[int]:
        """Of the chat template's text."""
        return self._look_up(text, ours=True)

    def start_prompt(self) -> None:
        """A new prompt: what the last one did not have is forgotten."""
        self._last, self._used = self._used, {}

    def _look_up(self, text: str, *, ours: bool) -> list[int]:
        ids = self._used.get((text, ours), self._last.get((text, ours)))
        if ids is None:
            ids = self._encoder.encode_template(text) if ours else self._encoder.encode(text)
        self._used[text, ours] = ids
        return ids


HOT_BYTES = 16 << 20
"""Of texts and trees kept for the next version of a file."""


class TextFileEncoder:
    """Makes `FileTokens` of texts, the next version of a file for the price of the change."""

    def __init__(self, tokenizer: BPETokenizer) -> None:
        self._contents = Contents(tokenizer, None, HOT_BYTES)

    def encode(self, path: str, text: str, before: FileTokens | None) -> FileTokens:
        """The tokens of a text; `before` are those of the file's last version. Raises BadFile where it has none."""
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            raise BadFile(f"{path} holds a lone surrogate at character {error.start}, which is not text") from None
        (made,) = self._contents.encode([Content(path, data, sha256(data).hexdigest(), before)], in_bulk=False)
        if made.tokens is None:
            raise BadFile(f"{path} cannot be encoded: {made.reason}")
        return made.tokens


FILES_INTRO = "Files of the project. Notes further on may supersede lines of them; the latest note holds.\n"
"""The same in every mode, so that a change of the mode changes nothing before the files."""


class PromptLayout:
    """Lays out the turns of one session, one after the other; the same calls give the same prompts. Not thread-safe.

    The order is: preamble and tools; files, those least likely to change per token first; the conversation; the
    question, with the notes and the clock before it. What was sent before a message stays before it in later turns, so
    that nothing moves.
    """

    def __init__(
        self,
        template: ChatTemplate,
        tokenizer: BPETokenizer,
        *,
        preamble: str = "",
        tools: Sequence[Mapping[str, Any]] = (),
        rebase_share: float | None = None,
    ) -> None:
        """`tools` are shown as JSON by name, however they are ordered.

        rebase_share: of a file's tokens; where its notes take more, it is written anew (None: `notes.REBASE_SHARE`).
        Raises CorruptModel where the chat template cannot hold a conversation.
        """
        self._template, self._tokenizer = template, tokenizer
        self._preamble, self._tools = preamble, _tools_text(tools)
        self._texts = TextFileEncoder(tokenizer)
        self._rates = ChangeRates()
        self._notes = ChangeNotes(tokenizer, rebase_share)
        self._ids = TextIdCache(tokenizer)
        self._latest: dict[str, FileTokens] = {}
        self._shown: dict[str, FileTokens] = {}
        """The version of each file that stands in the prompt, in the order in which they stand."""
        self._messages: tuple[HistoryMessage, ...] = ()
        """What was sent last, the question at the end."""
        self._clocks: dict[int, str] = {}
        """By the number of a message, what stands before its text."""
        self._last_ids: NDArray[np.uint32] = np.zeros(0, np.uint32)
        self._num_behind = 0
        render_frame(template, ["system", "user", "assistant", "user"])

    def build_prompt(
        self,
        files: Mapping[str, FileTokens | str],
        history: Sequence[HistoryMessage],
        question: str,
        mode: ContextMode = "exact",
        *,
        clock: str = "",
        role: str = "user",
    ) -> SessionPrompt:
        """The prompt of the next turn.

        `files` are those to be seen, as they are now: tokens of the repository cache, or text. `history` is what was
        said so far, `question` what is asked now (`role` "tool" for a tool's result), and `clock` whatever changes with
        every turn. Raises BadFile where a text cannot be encoded.
        """
        now = self._encode_files(files)
        changed = {path for path, one in now.items() if not _is_same(one, self._latest.get(path, one))}
        self._rates.observe(now, changed)
        messages = (*history, HistoryMessage(role, question))
        self._forget_from(_count_shared_messages(self._messages, messages[:-1]))
        self._latest, self._messages = now, messages
        if clock:
            self._clocks[len(history)] = clock
        over = self._notes.find_over_share(self._shown, now) if mode == "balanced" else frozenset(self._shown)
        rebased = self._choose_versions(over)
        noted = self._notes.add(len(history), self._shown, now)
        return self._assemble(mode, noted, rebased, with_question=True)

    def rebase(self, mode: ContextMode = "balanced") -> SessionPrompt:
        """Write all files as they are now, in the order that is cheapest from here on.

        What is returned is the next turn's prompt up to the question, to be prefilled while nobody waits.
        """
        rebased = self._choose_versions(frozenset(self._shown))
        return self._assemble(mode, (), rebased, with_question=False)

    def _encode_files(self, files: Mapping[str, FileTokens | str]) -> dict[str, FileTokens]:
        return {
            path: self._texts.encode(path, file, self._latest.get(path)) if isinstance(file, str) else file
            for path, file in files.items()
        }

    def _forget_from(self, message: int) -> None:
        """What was sent before this message and later ones is not in the prompt any more."""
        self._clocks = {number: clock for number, clock in self._clocks.items() if number < message}
        self._notes.forget_from(message)

    def _choose_versions(self, over: Iterable[str]) -> tuple[str, ...]:
        """Choose the versions and the order of files; return those that had notes and are written anew.

        Behind the first change all is prefilled anyway: there every file is written as it is now.
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
                num_cached += self._count_tokens(path, was) if is_same else _count_common_tokens(was, now[path])
                is_cached = is_same
        costs = {
            path: FileCost(self._count_tokens(path, versions.get(path, one)), self._rates.estimate_chance(path))
            for path, one in now.items()
        }
        new_order = choose_order(order, costs, num_cached=num_cached, num_behind=self._num_behind)
        is_cached, shown = True, {}
        for place, path in enumerate(new_order):
            is_cached = is_cached and place < len(order) and order[place] == path
            shown[path] = versions[path] if is_cached else now[path]
        rebased = tuple(path for path, one in shown.items() if not _is_same(one, self._shown.get(path, one)))
        had_notes = self._notes.paths
        self._shown = shown
        self._notes.drop({path for path in had_notes if path not in shown or path in rebased})
        return tuple(path for path in rebased if path in had_notes)

    def _assemble(
        self, mode: ContextMode, noted: tuple[str, ...], rebased: tuple[str, ...], *, with_question: bool
    ) -> SessionPrompt:
        messages = self._messages if with_question else self._messages[:-1]
        # The files stand at the beginning of the user's first message.
        own = [] if messages and messages[0].role == "user" else ["user"]
        pieces = render_frame(self._template, ["system", *own, *(message.role for message in messages)])
        between = (pieces[2:] if own else ["", *pieces[2:]])[:-1]
        self._ids.start_prompt()
        made = _Assembly()
        made.add("preamble", "", [self._encode_segment(pieces[0], self._preamble)])
        made.add("tools", "", [self._encode_segment("", self._tools)])
        made.add("preamble", "", [self._encode_segment(pieces[1], FILES_INTRO)])
        for path, tokens in self._shown.items():
            made.add("file", path, self._make_file_segments(path, tokens))
        num_before = made.num_tokens
        num_history = len(messages) - with_question
        for number in range(num_history):
            made.add(
                "history", str(number), [self._encode_segment(between[number], *self._collect_texts(number, messages))]
            )
        if with_question:
            asked = self._encode_segment(between[-1], *self._collect_texts(num_history, messages)).token_ids
            made.add("question", str(num_history), [PromptSegment((*asked, *self._ids.encode_template(pieces[-1])))])
        self._num_behind = made.num_tokens - num_before
        return SessionPrompt(
            segments=tuple(made.segments),
            parts=tuple(made.parts),
            order=tuple(self._shown),
            noted=noted,
            rebased=rebased,
            num_kept=self._remember(made.segments),
            mode=mode,
        )

    def _collect_texts(self, number: int, messages: Sequence[HistoryMessage]) -> tuple[str, ...]:
        """A message's text, and what was put before it when it was sent."""
        return (*self._notes.list_before(number), self._clocks.get(number, ""), messages[number].text)

    def _encode_segment(self, ours: str, *texts: str) -> PromptSegment:
        """The chat template's text and others, each encoded apart, so that no token reaches across a border."""
        return keyed(
            self._tokenizer,
            [*self._ids.encode_template(ours), *(one for text in texts for one in self._ids.encode(text))],
        )

    def _remember(self, segments: Sequence[PromptSegment]) -> int:
        """Remember the prompt; return how many tokens it begins with as the last one did."""
        token_ids = np.array([number for segment in segments for number in segment.token_ids], np.uint32)
        shorter = min(len(token_ids), len(self._last_ids))
        num_kept = num_equal(token_ids[:shorter], self._last_ids[:shorter])
        self._last_ids = token_ids
        return num_kept

    def _make_file_segments(self, path: str, tokens: FileTokens) -> list[PromptSegment]:
        last = tokens.token_ids[-1:]
        ends_line = not len(last) or self._tokenizer.decode(last.tolist()).endswith("\n")
        return make_file_segments(self._tokenizer, path, tokens, ends_line=ends_line)

    def _count_tokens(self, path: str, tokens: FileTokens) -> int:
        """In the prompt; the lines around a file are some ten tokens and its path."""
        return len(tokens) + 10 + len(path) // 3


def _tools_text(tools: Sequence[Mapping[str, Any]]) -> str:
    """One a line, sorted, so that an order that comes out of a set or a registry does not change the prompt."""
    if not tools:
        return ""
    lines = sorted(json.dumps(tool, ensure_ascii=False, sort_keys=True) for tool in tools)
    return "\n\n# Tools\n" + "\n".join(lines)


def _count_shared_messages(first: Sequence[HistoryMessage], second: Sequence[HistoryMessage]) -> int:
    """How many messages two conversations begin with alike."""
    for number, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return number
    return min(len(first), len(second))


def _is_same(one: FileTokens, other: FileTokens) -> bool:
    return one.content_hash == other.content_hash


def _count_common_tokens(one: FileTokens, other: FileTokens) -> int:
    """Tokens that two versions of a file begin with alike."""
    shorter = min(len(one), len(other))
    return num_equal(one.token_ids[:shorter], other.token_ids[:shorter])
