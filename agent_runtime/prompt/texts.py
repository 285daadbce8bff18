"""The texts of one apply, and the sections in which a prompt shows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Texts:
    """What one apply is about, without final newlines.

    With an `outline`, `file` is only a part of a file, and the outline tells what else the file holds.
    """

    file: str
    edit: str
    instruction: str = ""
    outline: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """One text of an apply between two pieces of ours."""

    before: str
    text: Callable[[Texts], str]
    after: str


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a prompt that is encoded apart: the text of a section, or one of ours, which has none."""

    text: str
    section: str = ""


SECTIONS: Mapping[str, Section] = {
    "code": Section("<code>\n", lambda texts: texts.file, "\n</code>\n"),
    "update": Section("<update>\n", lambda texts: texts.edit, "\n</update>\n"),
    "instruction": Section("<instruction>", lambda texts: texts.instruction, "</instruction>\n"),
    "part": Section(
        "The code is only a part of a file. Write this part, and nothing of the rest, which is:\n<outline>\n",
        lambda texts: texts.outline,
        "\n</outline>\n",
    ),
}
"""The sections that forms can ask for, by name. One whose text is empty is left out, but for the file and the edit."""

REQUIRED = frozenset({"code", "update"})
