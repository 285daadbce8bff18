"""The kinds of causes that break a prefix, and what to do about each."""

from __future__ import annotations

from typing import Literal

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
    "timestamp": "Put the clock behind everything that stays, right before the question, or give it as roughly as will "
    "do: the day.",
    "uuid": "Leave the id out of the prompt, or put it behind everything that stays.",
    "id": "Leave the id out of the prompt, or put it behind everything that stays.",
    "counter": "Leave the number out, or put it behind everything that stays.",
    "tools_order": "Sort the tools by name before each request: sets and registries give them in any order.",
    "tools_keys": "Write the tools' JSON with sorted keys, or keep the text of the first request.",
    "tools_changed": "Give all tools from the first request on, and say later which of them may be used.",
    "moved": "Leave the text where it was first sent and say it again at the end, instead of taking it out above.",
    "line_endings": "Write texts into prompts with one kind of line ending.",
    "whitespace": "Put texts together the same way each time: blanks and line breaks are tokens.",
    "system_line": "Keep the system's message as it was first sent, and say what is new right before the question.",
    "file": "Ask with reuse `fast`, which computes the changed span again and what it must behind it, or `balanced`, "
    "which leaves the file and appends the change; or put files that change often behind those that do not.",
    "history": "Only append to the history. Where it has to be cut, cut much at once and seldom.",
    "text": "Send what stands before the question byte for byte as it was sent before.",
}
