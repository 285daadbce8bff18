"""What it was that changed between two prompts: one change after the other, each with a name."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from agent_runtime.context.overlay import lines_of
from agent_runtime.doctor.advice import ADVICE, CauseKind
from agent_runtime.doctor.file_places import file_at
from agent_runtime.doctor.prompt_text import PromptText, TextPart
from agent_runtime.doctor.volatile import volatile_at
from editor.alignment import line_opcodes

_MANY_LINES = 40
"""Of a file a change of more lines than this, and of half of them, is another file."""


@dataclass(frozen=True, slots=True)
class Change:
    """Lines that differ: text before and after, and the character at which each begins in its prompt."""

    first: str
    second: str
    first_start: int
    second_start: int

    @property
    def place(self) -> int:
        """The first character that differs, from the beginning of the lines."""
        shorter = min(len(self.first), len(self.second))
        same = (at for at in range(shorter) if self.first[at] != self.second[at])
        return next(same, shorter)


@dataclass(frozen=True, slots=True)
class Cause:
    """What a change is: its kind, a sentence about it, and what to do."""

    kind: CauseKind
    what: str

    @property
    def advice(self) -> str:
        """What to do about it."""
        return ADVICE[self.kind]


def changes(first: str, second: str) -> list[Change]:
    """The changes from one text to the other by lines, in order."""
    old, new = lines_of(first), lines_of(second)
    found, at_old, at_new = [], 0, 0
    for op in line_opcodes(old, new):
        one, other = "".join(old[op.a_start : op.a_end]), "".join(new[op.b_start : op.b_end])
        if not op.equal:
            found.append(Change(one, other, at_old, at_new))
        at_old, at_new = at_old + len(one), at_new + len(other)
    return found


def cause_of(number: int, all_changes: Sequence[Change], first: PromptText, second: PromptText) -> Cause:
    """What the change of that number is."""
    change = all_changes[number]
    part = second.part_at(change.second_start + change.place)
    for found in (
        _spelling(change),
        _tools(first, second, part),
        _reordered(all_changes[number:]),
        _moved(number, all_changes) or _moved_on(change, first, second, part),
        _value(change, second),
        _system_line(change, part),
        _file(change, second, part),
        _history(change, first, second, part),
    ):
        if found is not None:
            return found
    return Cause("text", f"{_amount(change)}{f' in {part.name}' if part.name else ''}")


def _spelling(change: Change) -> Cause | None:
    """Texts that differ in what cannot be seen."""
    if change.first.replace("\r\n", "\n") == change.second.replace("\r\n", "\n"):
        ends = [("CR LF" if "\r\n" in text else "LF") for text in (change.first, change.second)]
        return Cause("line_endings", f"lines end with {ends[0]} in the first prompt and with {ends[1]} in the second")
    if "".join(change.first.split()) == "".join(change.second.split()):
        return Cause("whitespace", "the same text with other white space")
    return None


def _tools(first: PromptText, second: PromptText, part: TextPart) -> Cause | None:
    """The tools of requests, as values."""
    if part.kind != "tools" or not first.tools or not second.tools:
        return None
    if Counter(map(_written, first.tools)) == Counter(map(_written, second.tools)):
        return Cause("tools_order", f"the same {len(second.tools)} tools in another order")
    if Counter(map(_canonical, first.tools)) == Counter(map(_canonical, second.tools)):
        return Cause("tools_keys", "the same tools, their JSON with keys in another order")
    old, new = ({_tool_name(tool): _canonical(tool) for tool in tools} for tools in (first.tools, second.tools))
    said = [f"{name} came" for name in new if name not in old]
    said += [f"{name} went" for name in old if name not in new]
    said += [f"{name} is described otherwise" for name in new if name in old and new[name] != old[name]]
    return Cause("tools_changed", "the tools are others: " + ", ".join(said[:4]) + (", ..." if len(said) > 4 else ""))


def _reordered(later: Sequence[Change]) -> Cause | None:
    """The same lines in another order, all of them within what differs from here on."""
    old = Counter(line.strip(" ,\n") for change in later for line in lines_of(change.first))
    new = Counter(line.strip(" ,\n") for change in later for line in lines_of(change.second))
    del old[""], new[""]
    if old != new or sum(old.values()) < 2:
        return None
    names = [name for line in old if (name := _tool_line(line))]
    if len(names) == len(old):
        return Cause("tools_order", f"the same tools in another order ({', '.join(names[:4])})")
    return Cause("moved", f"the same {sum(old.values())} lines in another order") if len(later) <= 3 else None


def _moved(number: int, all_changes: Sequence[Change]) -> Cause | None:
    """A block that one side has here and the other elsewhere."""
    change = all_changes[number]
    for own, others, where in (
        (change.first, [other.second for other in all_changes if other is not change], "further on"),
        (change.second, [other.first for other in all_changes if other is not change], "elsewhere"),
    ):
        block = own.strip()
        if len(block) >= 16 and any(block in other for other in others):
            name = _shortened(block)
            went = where == "further on"
            said = f"{name!r} is gone from here and stands elsewhere" if went else f"{name!r} stood elsewhere before"
            return Cause("moved", said)
    return None


def _moved_on(change: Change, first: PromptText, second: PromptText, part: TextPart) -> Cause | None:
    """The end of a message that now is the end of a later one, as of a reminder that is sent with the last message."""
    place = change.first_start + change.place
    was = first.part_at(place)
    rest = first.text[place : was.end].strip()
    at = second.text.find(rest, part.end)
    if part.kind != "message" or len(rest) < 16 or at < 0:
        return None
    return Cause("moved", f"{_shortened(rest)!r} is gone from {was.name} and stands in {second.part_at(at).name}")


def _value(change: Change, second: PromptText) -> Cause | None:
    """A time, an id or a number in a line that is the same otherwise."""
    place = change.place
    start = change.first.rfind("\n", 0, place) + 1
    one, other = (text[start:].split("\n", 1)[0] for text in (change.first, change.second))
    value = volatile_at(one, other, place - start)
    if value is None:
        return None
    names = {"timestamp": "a date or time", "uuid": "a UUID", "id": "a random id", "counter": "a number that counts"}
    byte = len(second.text[: change.second_start + start + value.start].encode("utf-8", "surrogatepass"))
    said = f"{names[value.kind]} at byte {byte}: {_shortened(value.first)} became {_shortened(value.second)}"
    kind: CauseKind = value.kind  # type: ignore[assignment]
    return Cause(kind, said)


def _system_line(change: Change, part: TextPart) -> Cause | None:
    if part.kind != "system":
        return None
    added, gone = (len(lines_of(text)) for text in (change.second, change.first))
    if change.second.startswith(change.first.rstrip("\n")) or not change.first:
        return Cause(
            "system_line", f"the system's message has {_lines(added - gone or 1)} more: {_shortened(change.second)!r}"
        )
    if change.first.startswith(change.second.rstrip("\n")) or not change.second:
        return Cause(
            "system_line", f"the system's message has {_lines(gone - added or 1)} less: {_shortened(change.first)!r}"
        )
    return Cause("system_line", f"the system's message reads otherwise: {_shortened(change.second[change.place :])!r}")


def _file(change: Change, second: PromptText, part: TextPart) -> Cause | None:
    """An edit within a file's text."""
    place = change.second_start + change.place
    file = file_at(second, place, part)
    if file is None:
        return None
    if len(lines_of(change.second)) > _MANY_LINES and 2 * len(change.second) > file.end - file.start:
        return None
    line = second.text.count("\n", file.start, place) + 1
    return Cause("file", f"{file.path} was edited at line {line} ({_amount(change)})")


def _history(change: Change, first: PromptText, second: PromptText, part: TextPart) -> Cause | None:
    if part.kind != "message":
        return None
    was = first.part_at(change.first_start + change.place)
    gone = len(first.parts) - len(second.parts)
    said = f"{was.name} was rewritten" if was.kind == "message" else f"{part.name} is another"
    if gone > 0:
        said += f"; the second prompt has {gone} messages less"
    return Cause("history", said)


def _written(tool: Any) -> str:
    return json.dumps(tool, ensure_ascii=False)


def _canonical(tool: Any) -> str:
    return json.dumps(tool, ensure_ascii=False, sort_keys=True)


def _tool_name(tool: Any) -> str:
    inner = tool.get("function", tool) if isinstance(tool, dict) else tool
    return str(inner.get("name", "?")) if isinstance(inner, dict) else str(inner)


def _tool_line(line: str) -> str:
    """The name of the tool that a line of JSON describes, "" where it is none."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return ""
    name = _tool_name(value) if isinstance(value, dict) else "?"
    return "" if name == "?" else name


def _amount(change: Change) -> str:
    gone, came = len(lines_of(change.first)), len(lines_of(change.second))
    if not gone:
        return f"{_lines(came)} more"
    return f"{_lines(gone)} less" if not came else f"{_lines(max(gone, came))} changed"


def _lines(number: int) -> str:
    return f"{number} line{'s' * (number != 1)}"


def _shortened(text: str, most: int = 60) -> str:
    line = next(iter(text.strip().split("\n")), "")
    return line if len(line) <= most else line[: most - 3] + "..."


def causes(first: PromptText, second: PromptText, most: int) -> Iterator[tuple[Change, Cause]]:
    """The first changes, each with its cause."""
    found = changes(first.text, second.text)
    for number in range(min(most, len(found))):
        yield found[number], cause_of(number, found, first, second)
