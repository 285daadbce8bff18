"""The prompts of a session's turns, with the files in them or not, and what each mode runs again of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import PurePath
from typing import cast

import numpy as np

from agent_runtime.doctor.transcripts import RecordedMessage as Recorded
from agent_runtime.doctor.transcripts import ToolCall
from agent_runtime.prompt.chat_template import ChatTemplate
from agent_runtime.session import HistoryMessage, PromptLayout
from agent_runtime.types import ReuseName
from benchmarks.reuse.sessions import WINDOW, Compactor, Limits, Message, Session
from editor.grammars import find_language
from editor.syntax import survey
from engine.kv_cache import KVPages, root_key
from engine.reuse import PromptSegment, RecomputeReason, Reuse, ReuseMode, ReusePlan, plan_reuse
from engine.reuse.plan import Lineage
from engine.reuse.span_index import SpanIndex
from engine.reuse.span_store import SpanStore
from engine.runner.kv_reuse import Recording
from repo_cache.tokenizer import BPETokenizer

FEWEST_LINES = 4
"""A shorter definition stands in one segment with what precedes it."""

_NUMBERED = re.compile(r"\d+:")


@dataclass(frozen=True)
class Prompts:
    """Makes prompts of messages with one model's tokenizer. What a message becomes is remembered.

    Each segment is tokenised by itself, so that its ids do not depend on its neighbours. A result of a tool is a user's
    message between <tool_response> tags, as Qwen's chat template writes it.
    """

    tokenizer: BPETokenizer
    _made: dict[Message, tuple[PromptSegment, ...]] = field(default_factory=dict)

    def build_prompt(self, messages: Sequence[Message]) -> list[PromptSegment]:
        """Return the prompt of a turn, ready for the assistant's answer."""
        segments = [segment for message in messages for segment in self.message(message)]
        return [*segments, PromptSegment(self.tokenizer.encode_template("<|im_start|>assistant\n"))]

    def message(self, message: Message) -> tuple[PromptSegment, ...]:
        if message not in self._made:
            self._made[message] = tuple(self._segments(message))
        return self._made[message]

    def size(self, message: Message) -> int:
        return sum(len(segment.token_ids) for segment in self.message(message))

    def answer(self, message: Message) -> list[int]:
        """Return the ids that the model wrote, but for the one that ended its turn."""
        return self.tokenizer.encode(message.text)

    def _segments(self, message: Message) -> Iterator[PromptSegment]:
        is_result = message.role == "tool"
        opening = f"<|im_start|>{'user' if is_result else message.role}\n" + ("<tool_response>\n" if is_result else "")
        closing = ("\n</tool_response>" if is_result else "") + "<|im_end|>\n"
        pieces = [self.tokenizer.encode(piece) for piece in cut(message.text, message.path)] or [[]]
        pieces[0] = [*self.tokenizer.encode_template(opening), *pieces[0]]
        pieces[-1] = [*pieces[-1], *self.tokenizer.encode_template(closing)]
        for ids in pieces:
            yield PromptSegment(ids)


def cut(text: str, path: str) -> list[str]:
    """The text of a file in pieces that begin at its definitions; one piece where `path` names no known language.

    Lines may be numbered ("12:code"), as SWE-agent shows them, with other lines above and below.
    """
    lines = text.split("\n")
    language = find_language(PurePath(path).name) if path else None
    if language is None:
        return [text] if text else []
    if sum(bool(_NUMBERED.match(line)) for line in lines) > len(lines) / 2:
        code = [line[number.end() :] if (number := _NUMBERED.match(line)) else "" for line in lines]
    else:
        code = lines
    found = survey("\n".join(line.removesuffix("\r") for line in code), language)
    starts = [0]
    for symbol in sorted(found.symbols if found else (), key=lambda each: each.doc_line):
        is_long = symbol.end_line - symbol.doc_line >= FEWEST_LINES
        if is_long and symbol.doc_line > starts[-1]:
            starts.append(symbol.doc_line)
    # A piece ends with a newline: what follows it is tokenised by itself.
    with_ends = [line + "\n" for line in lines[:-1]] + [lines[-1]]
    pieces = ["".join(with_ends[first:end]) for first, end in pairwise([*starts, len(lines)])]
    return [piece for piece in pieces if piece]


PAGE_SIZE = 32
NUM_PAGES = 2 * 16_384 // PAGE_SIZE
"""Those of an engine as it is by default: two prompts of the longest."""

ALL = 1 << 30
"""Idle time for any prompt."""

NUM_SLOTS = 65_536
"""Tokens in the span store: 0.8 GB for the 0.5B model, 1.9 GB for the 1.5B one."""


@dataclass(frozen=True, slots=True)
class TurnCount:
    """What became of one prompt's tokens, as in `GenerationUsage`: the first three add up to `prompt`.

    new: tokens of messages that are in this prompt for the first time, and no answer of the turn before: nobody can
    have their KV, but of the same text elsewhere. compacted: whether the prompt was cut since the turn before.
    """

    prompt: int
    cached: int
    reused: int
    recomputed: int
    by_reason: Mapping[RecomputeReason, int]
    new: int = 0
    compacted: bool = False


class Books:
    """One engine's books: what it would have cached and stored."""

    def __init__(self, num_pages: int = NUM_PAGES, num_slots: int = NUM_SLOTS, page_size: int = PAGE_SIZE) -> None:
        self.num_pages = num_pages
        self._pages = KVPages(num_pages, page_size)
        self._index = SpanIndex(num_slots)
        self._lineage = Lineage()
        self._num_sequences = 0

    def turn(
        self, segments: Sequence[PromptSegment], mode: ReuseMode, answer_ids: Sequence[int] = (), salt: str = ""
    ) -> TurnCount:
        """Run a prompt and the answer to it, one token of which is the turn's end and has no KV."""
        prompt = [token for segment in segments for token in segment.token_ids]
        all_ids, root = [*prompt, *answer_ids], root_key(b"", salt, None)
        sequence, self._num_sequences = self._num_sequences, self._num_sequences + 1
        num_cached = self._pages.open(sequence, prompt, root)
        plan = None if mode == "exact" else self._plan(segments, prompt, num_cached, root, mode)
        if plan is not None:
            self._pages.taint(sequence, plan.num_exact)
        has_grown = self._pages.grow(sequence, len(all_ids))
        assert has_grown, "alone every sequence fits"
        self._pages.take_copies()
        self._pages.commit(sequence, all_ids[num_cached:])
        self._pages.close(sequence)
        run = list(range(num_cached, len(prompt))) if plan is None else plan.pending.tolist()
        self._record(root, all_ids, [*run, *range(len(prompt), len(all_ids))], plan)
        reused = 0 if plan is None else plan.num_placed
        by_reason: dict[RecomputeReason, int] = {"changed": len(run)} if plan is None else dict(plan.by_reason)
        return TurnCount(len(prompt), num_cached, reused, len(run), by_reason)

    def rebuild(self, segments: Sequence[PromptSegment], most: int, salt: str = "") -> int:
        """Run up to `most` tokens of a prompt exactly, as the engine does while nobody waits; returns how many it ran.

        What an interrupted run has computed stays: the next one goes on from there.
        """
        prompt = [token for segment in segments for token in segment.token_ids]
        num_cached = self._pages.num_cached(prompt, root_key(b"", salt, None))
        return self.turn([PromptSegment(prompt[: num_cached + most])], "exact", salt=salt).recomputed

    def check_integrity(self) -> None:
        self._pages.check_integrity()
        self._index.check_integrity()

    def _plan(
        self, segments: Sequence[PromptSegment], prompt: list[int], num_cached: int, root: bytes, mode: ReuseMode
    ) -> ReusePlan | None:
        matches = self._index.find(root, np.array(prompt, np.uint32), num_cached)
        plan = plan_reuse(len(prompt), num_cached, matches, Reuse.from_segments(segments, mode), self._lineage)
        return plan if plan.placed else None

    def _record(self, root: bytes, token_ids: list[int], positions: list[int], plan: ReusePlan | None) -> None:
        recording = Recording(cast(SpanStore, self._index))  # of a store, it uses what the index has
        recording.reserve(len(positions))
        recording.keep(positions)
        recording.plan = plan
        recording.enter(root, token_ids, self._lineage)
        recording.give_back()


@dataclass(slots=True)
class SessionCount:
    """One session's turns in one mode.

    idle: tokens that the engine has time for between two turns, while tools run; rebuilt: how many it ran.
    """

    session: str
    mode: str
    idle: int = 0
    turns: list[TurnCount] = field(default_factory=list)
    rebuilt: int = 0

    def sum_field(self, name: str) -> int:
        """Return the sum over the turns of a field of `TurnCount`."""
        return sum(int(getattr(turn, name)) for turn in self.turns)

    @property
    def by_reason(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for turn in self.turns:
            found.update(turn.by_reason)
        return found


@dataclass(frozen=True, slots=True)
class Prompt:
    """One turn's prompt: its segments, the answer's ids, and what `TurnCount` says of it next to the counts."""

    segments: list[PromptSegment]
    answer_ids: list[int]
    new: int
    compacted: bool


def build_prompts(session: Session, prompts: Prompts, limits: Limits = WINDOW) -> list[Prompt]:
    """Return the prompts of a session's turns, compacted."""
    compactor = Compactor(prompts.size, limits)
    made, before, answer = [], set[Message](), None
    for turn in session.turns:
        num_compactions = compactor.num_compactions
        messages = compactor.prompt(turn.messages)
        new = [message for message in messages if message not in before and message != answer]
        made.append(
            Prompt(
                prompts.build_prompt(messages),
                [] if turn.answer is None else prompts.answer(turn.answer),
                sum(map(prompts.size, new)),
                compactor.num_compactions > num_compactions,
            )
        )
        before, answer = set(messages), turn.answer
    return made


def count_session(
    name: str, made: Sequence[Prompt], mode: ReuseMode, books: Books, *, salt: str = "", idle: int = 0
) -> SessionCount:
    """Replay a session's prompts; between two turns up to `idle` tokens of what was taken over are run exactly."""
    found = SessionCount(name, mode, idle)
    for prompt in made:
        turn = books.turn(prompt.segments, mode, prompt.answer_ids, salt)
        found.turns.append(replace(turn, new=prompt.new, compacted=prompt.compacted))
        if idle and turn.reused:
            found.rebuilt += books.rebuild([*prompt.segments, PromptSegment(prompt.answer_ids)], idle, salt)
    return found


FILES, FILES_LOW_WATER, LONGEST_FILE = 8_192, 6_144, 4_608
"""Tokens of all files at most, of what is left when some go, and of one file."""

HISTORY = Limits(budget=6_144, low_water=3_072, cap=1_536)
"""Tokens of the conversation; what is left of the window is for notes, and 1,024 for the answer."""

SEEN_ABOVE = "[{} stands among the files above, as it is now.]"

CHATML = ChatTemplate(
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(slots=True)
class Files:
    """The files that are in the prompt, by path, those used least lately first."""

    prompts: Prompts
    texts: dict[str, str] = field(default_factory=dict)

    def follow_call(self, call: ToolCall, result: str) -> bool:
        """Follow a call of a tool; whether its result is a file that is in the prompt now."""
        arguments = call.arguments if isinstance(call.arguments, Mapping) else {}
        path = str(arguments.get("path", ""))
        if call.name == "edit" and path in self.texts:
            old, new = str(arguments.get("oldText", "")), str(arguments.get("newText", ""))
            if old and self.texts[path].count(old) == 1:
                self._hold(path, self.texts[path].replace(old, new))
            return False
        if call.name == "write":
            self._hold(path, str(arguments.get("content", "")))
            return False
        if call.name != "read" or not path:
            return False
        if "offset" in arguments or "limit" in arguments:
            if path in self.texts:
                self.texts[path] = self.texts.pop(path)  # used just now
            return False
        return self._hold(path, result)

    def _hold(self, path: str, text: str) -> bool:
        self.texts.pop(path, None)
        if not text or self._size(text) > LONGEST_FILE:
            return False
        self.texts[path] = text
        if sum(map(self._size, self.texts.values())) > FILES:
            while sum(map(self._size, self.texts.values())) > FILES_LOW_WATER and len(self.texts) > 1:
                del self.texts[next(iter(self.texts))]
        return True

    def _size(self, text: str) -> int:
        return self.prompts.size(Message("tool", text))


def build_workspace_prompts(session: Session, prompts: Prompts, mode: ReuseName) -> list[Prompt]:
    """Return the prompts of a session's turns, none where it never reads a whole file."""
    files, compactor = Files(prompts), Compactor(prompts.size, HISTORY)
    context = PromptLayout(CHATML, prompts.tokenizer, preamble=session.turns[0].messages[0].text)
    made: list[Prompt] = []
    before: set[tuple[int, ...]] = set()
    held_any = False  # whether there was a file in any prompt
    for messages, answer in _follow_conversation(session, files):
        held_any = held_any or bool(files.texts)
        num_compactions = compactor.num_compactions
        shown = compactor.prompt(messages)
        history = [HistoryMessage(each.role, each.text) for each in shown[1:]]
        if not history:
            continue
        found = context.build_prompt(dict(files.texts), history[:-1], history[-1].text, mode, role=history[-1].role)
        segments = list(found.segments)
        own = {tuple(segment.token_ids) for segment in segments}
        new = sum(len(ids) for ids in own - before)
        answer_ids = prompts.answer(answer) if answer is not None else []
        made.append(Prompt(segments, answer_ids, new, compactor.num_compactions > num_compactions))
        before = own
    return made if held_any else []


def _follow_conversation(session: Session, files: Files) -> Iterator[tuple[list[Message], Message | None]]:
    """Yield each turn's messages, in which what was read whole is only named; `files` are as they are at that turn."""
    seen: list[Recorded] = []
    said: list[Message] = [session.turns[0].messages[0]]
    asked: list[ToolCall] = []
    for turn, recorded in zip(session.turns, session.recorded, strict=True):
        own = (
            recorded.messages[1:] if recorded.messages and recorded.messages[0].role == "system" else recorded.messages
        )
        for place in range(len(seen), len(own)):
            message, shown = own[place], turn.messages[1 + place]
            if message.role == "assistant":
                asked = list(message.tool_calls)
            elif message.role == "tool" and asked:
                call = asked.pop(0)
                if files.follow_call(call, message.text):
                    shown = replace(shown, text=SEEN_ABOVE.format(shown.path))
            said.append(shown)
            seen.append(message)
        yield list(said), turn.answer
