"""A file to send slow edits to, and its edits in each format."""

from __future__ import annotations

import json
from itertools import cycle, islice
from random import Random
from typing import NamedTuple

from editor.types import FormatName

SEED = 20
MARKER = "# ... existing code ..."


class SlowInput(NamedTuple):
    """One request: `format` is given with it, never guessed."""

    name: str
    original: bytes
    edit: str
    path: str
    format: FormatName


class Sizes(NamedTuple):
    file: int
    lazy_file: int
    edit: int


class Target(NamedTuple):
    """A file, and edits of it in each format."""

    text: str
    path: str

    def send(self, name: str, edit: str, format_name: FormatName) -> SlowInput:
        return SlowInput(f"{format_name}: {name}", self.text.encode(), edit, self.path, format_name)

    def block(self, name: str, old: list[str], new: list[str]) -> SlowInput:
        return self.send(name, render_block(old, new), "search_replace")

    def replace(self, name: str, pairs: list[tuple[str, str]], *, everywhere: bool = False) -> SlowInput:
        return self.send(name, render_pairs(pairs, replace_all=everywhere), "replace")

    def udiff(self, name: str, hunks: str) -> SlowInput:
        return self.send(name, render_diff(hunks, self.path), "udiff")

    def v4a(self, name: str, hunks: str) -> SlowInput:
        return self.send(name, render_patch(hunks, self.path), "v4a")

    def whole(self, name: str, text: str) -> SlowInput:
        return self.send(name, text, "whole")


def repeat_lines(lines: list[str], size: int) -> list[str]:
    """Return the lines over and over, as many as fill `size` bytes."""
    per_round = sum(len(line) + 1 for line in lines)
    return list(islice(cycle(lines), max(1, size * len(lines) // per_round)))


def join(lines: list[str]) -> str:
    return "".join(line + "\n" for line in lines)


def render_block(old: list[str], new: list[str]) -> str:
    return f"<<<<<<< SEARCH\n{join(old)}=======\n{join(new)}>>>>>>> REPLACE\n"


def render_hunk(old: list[str], new: list[str], line: int | None = None, context: list[str] | None = None) -> str:
    kept = context or []
    sizes = len(old) + len(kept), len(new) + len(kept)
    head = "@@" if line is None else f"@@ -{line},{sizes[0]} +{line},{sizes[1]} @@"
    return "\n".join([head, *(" " + one for one in kept), *("-" + one for one in old), *("+" + one for one in new), ""])


def render_diff(hunks: str, path: str) -> str:
    return f"--- a/{path}\n+++ b/{path}\n{hunks}"


def render_patch(hunks: str, path: str) -> str:
    return f"*** Begin Patch\n*** Update File: {path}\n{hunks}*** End Patch\n"


def render_pairs(pairs: list[tuple[str, str]], *, replace_all: bool = False) -> str:
    extra = {"replace_all": True} if replace_all else {}
    return json.dumps([{"old_string": old, "new_string": new} | extra for old, new in pairs], separators=(",", ":"))


def make_python(size: int, seed: int = SEED) -> list[str]:
    """Return the lines of a Python file of classes and methods, as repetitive as real ones are."""
    random = Random(seed)
    words = ["load", "save", "parse", "merge", "token", "index", "cache", "entry", "value", "result", "path", "buffer"]
    lines = ['"""A large module."""', "", "import os", "import re", "from pathlib import Path", ""]
    total = sum(len(line) + 1 for line in lines)
    number = 0
    while total < size:
        made = ["", f"class {random.choice(words).title()}{number}:", f'    """Holds a {random.choice(words)}."""', ""]
        for _ in range(random.randint(3, 9)):
            number += 1
            a, b, c = random.sample(words, 3)
            made += [f"    def {a}_{number}(self, {b}, {c}=None):", f'        """Return the {b} of a {c}."""']
            made += [f"        if {b} is None:", f"            return self.{c}"]
            made += [
                f"        for {a} in self.{b}s[{random.randint(0, 99)}:]:",
                f"            self.{c}.append({a} + {number})",
            ]
            made += ["            if not self.ready:", "                raise ValueError('not ready')"]
            made += [f"        return {b} or self._{a}({c})", ""]
        number += 1
        lines += made
        total += sum(len(line) + 1 for line in made)
    return lines


def take_bytes(lines: list[str], size: int, start: int = 0) -> list[str]:
    """Return as many lines from `start` on as make up `size` bytes."""
    end, total = start, 0
    while end < len(lines) and total + len(lines[end]) + 1 <= size:
        total += len(lines[end]) + 1
        end += 1
    return lines[start:end]


def change_lines(lines: list[str], every: int) -> list[str]:
    return [line + "  # changed" if at % every == 0 and line.strip() else line for at, line in enumerate(lines)]
