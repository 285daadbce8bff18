"""Causes of a broken prefix, and the advice for each."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agent_runtime.doctor.transcripts import PromptText, TextPart, find_file
from agent_runtime.session.changes import split_lines
from editor.diff import line_opcodes

_MONTHS = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
_KINDS: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "uuid",
        re.compile(r"(?<![0-9a-zA-Z])[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}(?![0-9a-zA-Z])"),
    ),
    (
        "timestamp",
        re.compile(
            rf"""\d{{4}}[-/.]\d{{1,2}}[-/.]\d{{1,2}}  # 2026-01-31T09:30:00.123Z
                (?:[T ,]+\d{{1,2}}:\d{{2}}(?::\d{{2}}(?:[.,]\d+)?)?(?:\s?[AaPp][Mm])?
                (?:\s?(?:Z|UTC|GMT|[+-]\d{{2}}:?\d{{2}}))?)?
            | (?:(?:Mon|Tues?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?,?\s+)?  # Sat, 31 Jan 2026 09:30:00
                (?:\d{{1,2}}\s+(?:{_MONTHS})[a-z]*|(?:{_MONTHS})[a-z]*\s+\d{{1,2}})(?:,?\s+\d{{4}})?
                (?:[ ,]+(?:at\s+)?\d{{1,2}}:\d{{2}}(?::\d{{2}})?(?:\s+\d{{4}})?)?
            | \d{{1,2}}[/.]\d{{1,2}}[/.]\d{{2,4}}(?:[T ,]+\d{{1,2}}:\d{{2}}(?::\d{{2}})?)?  # 31.01.2026
            | \d{{1,2}}:\d{{2}}(?::\d{{2}}(?:\.\d+)?)?(?:\s?[AaPp][Mm])?  # 09:30
            | (?<!\d)1[5-9]\d{{8}}(?:\.\d+|\d{{3}}|\d{{6}}|\d{{9}})?(?!\d)  # 1769851800
            """,
            re.VERBOSE,
        ),
    ),
    (
        "id",
        re.compile(
            r"(?<![0-9a-zA-Z_-])(?=[0-9a-zA-Z_-]*\d)(?=[0-9a-zA-Z_-]*[a-zA-Z])[0-9a-zA-Z_-]{8,}(?![0-9a-zA-Z_-])"
        ),
    ),
    ("counter", re.compile(r"(?<![\w.])\d+(?![\w.])|(?<=[#_])\d+\b")),
)
"""In the order in which they are tried: a point in time also contains numbers."""


@dataclass(frozen=True, slots=True)
class VolatileValue:
    """A value that differs between two lines: its kind, its text in each, the character at which it starts."""

    kind: str
    first: str
    second: str
    start: int


def find_volatile(first: str, second: str, position: int) -> VolatileValue | None:
    """Find the value of a volatile kind that differs between two lines at character `position`."""
    for kind, pattern in _KINDS:
        one, other = _find_match(pattern, first, position), _find_match(pattern, second, position)
        if one is not None and other is not None and one.group() != other.group():
            return VolatileValue(kind, one.group(), other.group(), one.start()) if _is_value(kind, one, other) else None
    return None


def _is_value(kind: str, one: re.Match[str], other: re.Match[str]) -> bool:
    """Return whether two texts are values of a kind: names in code look like ids, but random ids have many digits."""
    if kind != "id":
        return True
    return all(sum(char.isdigit() for char in each.group()) >= max(2, len(each.group()) // 8) for each in (one, other))


def _find_match(pattern: re.Pattern[str], line: str, position: int) -> re.Match[str] | None:
    return next((found for found in pattern.finditer(line) if found.start() <= position <= found.end()), None)


CauseKind = Literal[
    "timestamp",
    "uuid",
    "id",
    "counter",
    "tools_order",
    "tools_keys",
    "tools_changed",
    "moved",
    "line_endings",
    "whitespace",
    "system_line",
    "file",
    "history",
    "text",
]

ADVICE: dict[CauseKind, str] = {
    "timestamp": "Put the time after all text that stays the same, right before the question, or use a coarser value: "
    "the day.",
    "uuid": "Leave the id out of the prompt, or put it after all text that stays the same.",
    "id": "Leave the id out of the prompt, or put it after all text that stays the same.",
    "counter": "Leave the number out, or put it after all text that stays the same.",
    "tools_order": "Sort the tools by name before each request: sets and registries return them in any order.",
    "tools_keys": "Write the tools' JSON with sorted keys, or keep the text of the first request.",
    "tools_changed": "Send all tools from the first request on, and say later which of them may be used.",
    "moved": "Leave the text where it was first sent and repeat it at the end, instead of removing it above.",
    "line_endings": "Write texts into prompts with one kind of line ending.",
    "whitespace": "Join texts the same way each time: spaces and line breaks are tokens.",
    "system_line": "Keep the system message as it was first sent, and put new text right before the question.",
    "file": "Use reuse `fast`, which recomputes the changed span and the necessary tokens after it, or `balanced`, "
    "which leaves the file and appends the change; or put files that change often after those that do not.",
    "history": "Only append to the history. Where it must be shortened, remove much at once and rarely.",
    "text": "Send the text before the question byte for byte as it was sent before.",
}

_MANY_LINES = 40
"""A change of more lines than this, and of more than half of a file, is another file instead of an edit."""


@dataclass(frozen=True, slots=True)
class LineChange:
    """Lines that differ: their text in both prompts, and the character at which each starts in its prompt."""

    first: str
    second: str
    first_start: int
    second_start: int

    @property
    def position(self) -> int:
        """The first character that differs, counted from the start of the lines."""
        shorter = min(len(self.first), len(self.second))
        same = (at for at in range(shorter) if self.first[at] != self.second[at])
        return next(same, shorter)


@dataclass(frozen=True, slots=True)
class Cause:
    """The cause of a change: its kind, and a sentence about it."""

    kind: CauseKind
    what: str

    @property
    def advice(self) -> str:
        """How to avoid it."""
        return ADVICE[self.kind]


def find_changes(first: str, second: str) -> list[LineChange]:
    """Find the changed lines between two texts, in order."""
    old, new = split_lines(first), split_lines(second)
    found, at_old, at_new = [], 0, 0
    for op in line_opcodes(old, new):
        one, other = "".join(old[op.a_start : op.a_end]), "".join(new[op.b_start : op.b_end])
        if not op.equal:
            found.append(LineChange(one, other, at_old, at_new))
        at_old, at_new = at_old + len(one), at_new + len(other)
    return found


def classify(number: int, all_changes: Sequence[LineChange], first: PromptText, second: PromptText) -> Cause:
    """Return the cause of the change of that number."""
    change = all_changes[number]
    part = second.find_part(change.second_start + change.position)
    for found in (
        _classify_whitespace(change),
        _classify_tools(first, second, part),
        _classify_reorder(all_changes[number:]),
        _classify_move(number, all_changes) or _classify_moved_end(change, first, second, part),
        _classify_value(change, second),
        _classify_system(change, part),
        _classify_file_edit(change, second, part),
        _classify_history(change, first, second, part),
    ):
        if found is not None:
            return found
    return Cause("text", f"{_describe_size(change)}{f' in {part.name}' if part.name else ''}")


def _classify_whitespace(change: LineChange) -> Cause | None:
    """Return the cause of texts that differ in white space only."""
    if change.first.replace("\r\n", "\n") == change.second.replace("\r\n", "\n"):
        ends = [("CR LF" if "\r\n" in text else "LF") for text in (change.first, change.second)]
        return Cause("line_endings", f"lines end with {ends[0]} in the first prompt and with {ends[1]} in the second")
    if "".join(change.first.split()) == "".join(change.second.split()):
        return Cause("whitespace", "the same text with other white space")
    return None


def _classify_tools(first: PromptText, second: PromptText, part: TextPart) -> Cause | None:
    """Return how the tools of two requests differ."""
    if part.kind != "tools" or not first.tools or not second.tools:
        return None
    if Counter(map(_to_json, first.tools)) == Counter(map(_to_json, second.tools)):
        return Cause("tools_order", f"the same {len(second.tools)} tools in another order")
    if Counter(map(_to_sorted_json, first.tools)) == Counter(map(_to_sorted_json, second.tools)):
        return Cause("tools_keys", "the same tools, their JSON with keys in another order")
    old, new = (
        {_find_tool_name(tool): _to_sorted_json(tool) for tool in tools} for tools in (first.tools, second.tools)
    )
    changed = [f"{name} added" for name in new if name not in old]
    changed += [f"{name} removed" for name in old if name not in new]
    changed += [f"{name} described differently" for name in new if name in old and new[name] != old[name]]
    return Cause("tools_changed", "other tools: " + ", ".join(changed[:4]) + (", ..." if len(changed) > 4 else ""))


def _classify_reorder(later: Sequence[LineChange]) -> Cause | None:
    """Return the cause where the remaining changes have the same lines in another order."""
    old = Counter(line.strip(" ,\n") for change in later for line in split_lines(change.first))
    new = Counter(line.strip(" ,\n") for change in later for line in split_lines(change.second))
    del old[""], new[""]
    if old != new or sum(old.values()) < 2:
        return None
    names = [name for line in old if (name := _parse_tool_line(line))]
    if len(names) == len(old):
        return Cause("tools_order", f"the same tools in another order ({', '.join(names[:4])})")
    return Cause("moved", f"the same {sum(old.values())} lines in another order") if len(later) <= 3 else None


def _classify_move(number: int, all_changes: Sequence[LineChange]) -> Cause | None:
    """Return the cause where one prompt has a block here and the other has it elsewhere."""
    change = all_changes[number]
    for own, others, where in (
        (change.first, [other.second for other in all_changes if other is not change], "moved from here"),
        (change.second, [other.first for other in all_changes if other is not change], "moved to here"),
    ):
        block = own.strip()
        if len(block) >= 16 and any(block in other for other in others):
            name = _shorten(block)
            return Cause("moved", f"{name!r} {where}")
    return None


def _classify_moved_end(change: LineChange, first: PromptText, second: PromptText, part: TextPart) -> Cause | None:
    """Return the cause where the end of a message moved to a later one, such as a reminder in the last message."""
    position = change.first_start + change.position
    was = first.find_part(position)
    rest = first.text[position : was.end].strip()
    at = second.text.find(rest, part.end)
    if part.kind != "message" or len(rest) < 16 or at < 0:
        return None
    return Cause("moved", f"{_shorten(rest)!r} moved from {was.name} to {second.find_part(at).name}")


def _classify_value(change: LineChange, second: PromptText) -> Cause | None:
    """Return the cause where a line differs in a time, an id or a number."""
    position = change.position
    start = change.first.rfind("\n", 0, position) + 1
    one, other = (text[start:].split("\n", 1)[0] for text in (change.first, change.second))
    value = find_volatile(one, other, position - start)
    if value is None:
        return None
    names = {"timestamp": "a date or time", "uuid": "a UUID", "id": "a random id", "counter": "a number that counts"}
    byte = len(second.text[: change.second_start + start + value.start].encode("utf-8", "surrogatepass"))
    text = f"{names[value.kind]} at byte {byte}: {_shorten(value.first)} became {_shorten(value.second)}"
    kind: CauseKind = value.kind  # type: ignore[assignment]
    return Cause(kind, text)


def _classify_system(change: LineChange, part: TextPart) -> Cause | None:
    if part.kind != "system":
        return None
    added, gone = (len(split_lines(text)) for text in (change.second, change.first))
    if change.second.startswith(change.first.rstrip("\n")) or not change.first:
        return Cause(
            "system_line",
            f"the system message has {_format_lines(added - gone or 1)} more: {_shorten(change.second)!r}",
        )
    if change.first.startswith(change.second.rstrip("\n")) or not change.second:
        return Cause(
            "system_line",
            f"the system message has {_format_lines(gone - added or 1)} less: {_shorten(change.first)!r}",
        )
    return Cause("system_line", f"the system message changed: {_shorten(change.second[change.position :])!r}")


def _classify_file_edit(change: LineChange, second: PromptText, part: TextPart) -> Cause | None:
    """Return the cause where a file's text was edited."""
    position = change.second_start + change.position
    file = find_file(second, position, part)
    if file is None:
        return None
    if len(split_lines(change.second)) > _MANY_LINES and 2 * len(change.second) > file.end - file.start:
        return None
    line = second.text.count("\n", file.start, position) + 1
    return Cause("file", f"{file.path} was edited at line {line} ({_describe_size(change)})")


def _classify_history(change: LineChange, first: PromptText, second: PromptText, part: TextPart) -> Cause | None:
    if part.kind != "message":
        return None
    was = first.find_part(change.first_start + change.position)
    gone = len(first.parts) - len(second.parts)
    text = f"{was.name} was rewritten" if was.kind == "message" else f"{part.name} differs"
    if gone > 0:
        text += f"; the second prompt has {gone} fewer messages"
    return Cause("history", text)


def _to_json(tool: Any) -> str:
    return json.dumps(tool, ensure_ascii=False)


def _to_sorted_json(tool: Any) -> str:
    return json.dumps(tool, ensure_ascii=False, sort_keys=True)


def _find_tool_name(tool: Any) -> str:
    inner = tool.get("function", tool) if isinstance(tool, dict) else tool
    return str(inner.get("name", "?")) if isinstance(inner, dict) else str(inner)


def _parse_tool_line(line: str) -> str:
    """Return the name of the tool that a line of JSON describes, "" where it describes none."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return ""
    name = _find_tool_name(value) if isinstance(value, dict) else "?"
    return "" if name == "?" else name


def _describe_size(change: LineChange) -> str:
    gone, came = len(split_lines(change.first)), len(split_lines(change.second))
    if not gone:
        return f"{_format_lines(came)} more"
    return f"{_format_lines(gone)} less" if not came else f"{_format_lines(max(gone, came))} changed"


def _format_lines(number: int) -> str:
    return f"{number} line{'s' * (number != 1)}"


def _shorten(text: str, most: int = 60) -> str:
    line = next(iter(text.strip().split("\n")), "")
    return line if len(line) <= most else line[: most - 3] + "..."


def find_causes(first: PromptText, second: PromptText, most: int) -> Iterator[tuple[LineChange, Cause]]:
    """The first changes, each with its cause."""
    found = find_changes(first.text, second.text)
    for number in range(min(most, len(found))):
        yield found[number], classify(number, found, first, second)
