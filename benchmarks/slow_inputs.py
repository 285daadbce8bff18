"""Inputs that were slow, or that look for what is slow: every one at the sizes that the bounds are promised for.

    explicit formats    files up to 1 MB, edits up to 200 kB
    lazy snippets       files of 400 kB and of 1 MB, edits up to 200 kB

`slow_inputs(scale=0.5)` gives the same inputs at half of these sizes: what grows by more than twice from there is not
linear. All texts come from formulas and from one seeded generator, so that every call gives the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from random import Random
from typing import NamedTuple

from editor.types import FormatName

FILE_BYTES = 1_000_000
LAZY_FILE_BYTES = 400_000
EDIT_BYTES = 200_000
_SEED = 20
_MARKER = "# ... existing code ..."


class SlowInput(NamedTuple):
    """One request: `format` is given with it, never guessed."""

    name: str
    original: bytes
    edit: str
    path: str
    format: FormatName


def make_slow_inputs(scale: float = 1.0) -> Iterator[SlowInput]:
    """Yield every input at `scale` times the promised sizes."""
    sizes = _Sizes(int(FILE_BYTES * scale), int(LAZY_FILE_BYTES * scale), int(EDIT_BYTES * scale))
    for family in _FAMILIES:
        yield from family(sizes)


class _Sizes(NamedTuple):
    file: int
    lazy_file: int
    edit: int


def _make(name: str, original: str, edit: str, path: str, name_of_format: FormatName) -> SlowInput:
    return SlowInput(f"{name_of_format}: {name}", original.encode(), edit, path, name_of_format)


def _repeat_lines(lines: list[str], size: int) -> list[str]:
    """Return the lines over and over, as many as fill `size` bytes."""
    per_round = sum(len(line) + 1 for line in lines)
    return list(islice(cycle(lines), max(1, size * len(lines) // per_round)))


def _join(lines: list[str]) -> str:
    return "".join(line + "\n" for line in lines)


def _render_block(old: list[str], new: list[str]) -> str:
    return f"<<<<<<< SEARCH\n{_join(old)}=======\n{_join(new)}>>>>>>> REPLACE\n"


def _render_hunk(old: list[str], new: list[str], line: int | None = None, context: list[str] | None = None) -> str:
    kept = context or []
    sizes = len(old) + len(kept), len(new) + len(kept)
    head = "@@" if line is None else f"@@ -{line},{sizes[0]} +{line},{sizes[1]} @@"
    return "\n".join([head, *(" " + one for one in kept), *("-" + one for one in old), *("+" + one for one in new), ""])


def _render_diff(hunks: str, path: str) -> str:
    return f"--- a/{path}\n+++ b/{path}\n{hunks}"


def _render_patch(hunks: str, path: str) -> str:
    return f"*** Begin Patch\n*** Update File: {path}\n{hunks}*** End Patch\n"


def _render_pairs(pairs: list[tuple[str, str]], *, replace_all: bool = False) -> str:
    extra = {"replace_all": True} if replace_all else {}
    return json.dumps([{"old_string": old, "new_string": new} | extra for old, new in pairs], separators=(",", ":"))


def make_python(size: int, seed: int = _SEED) -> list[str]:
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


def _take_bytes(lines: list[str], size: int, start: int = 0) -> list[str]:
    """Return as many lines from `start` on as make up `size` bytes."""
    end, total = start, 0
    while end < len(lines) and total + len(lines[end]) + 1 <= size:
        total += len(lines[end]) + 1
        end += 1
    return lines[start:end]


def _change_lines(lines: list[str], every: int) -> list[str]:
    return [line + "  # changed" if at % every == 0 and line.strip() else line for at, line in enumerate(lines)]


def _make_real_files(sizes: _Sizes) -> Iterator[SlowInput]:
    """Yield large edits of large files as people have them: nothing about them is odd but their size."""
    lines = make_python(sizes.file)
    text = _join(lines)
    old = _take_bytes(lines, sizes.edit * 9 // 20, len(lines) // 3)
    new = _change_lines(old, 20)
    yield _make("one large block", text, _render_block(old, new), "big.py", "search_replace")
    yield _make("one large pair", text, _render_pairs([(_join(old), _join(new))]), "big.py", "replace")
    near = [*old[:-1], old[-1] + "x"]
    yield _make("one large block that misses by a letter", text, _render_block(near, new), "big.py", "search_replace")
    yield _make(
        "one large pair that misses by a letter", text, _render_pairs([(_join(near), _join(new))]), "big.py", "replace"
    )
    indented = [line[4:] if line.startswith("    ") else line for line in old]
    yield _make("one large block at another depth", text, _render_block(indented, new), "big.py", "search_replace")
    yield _make("one large hunk", text, _render_diff(_render_hunk(old, new, 7), "big.py"), "big.py", "udiff")
    yield _make("one large hunk", text, _render_patch(_render_hunk(old, new), "big.py"), "big.py", "v4a")
    yield _make(
        "one large hunk that misses", text, _render_diff(_render_hunk(near, new, 7), "big.py"), "big.py", "udiff"
    )
    heads = [at for at, line in enumerate(lines) if line.startswith("    def ")]
    chosen = heads[:: max(1, len(heads) * 260 // sizes.edit)]
    marks = [(lines[at], lines[at].replace("(self", "(self, more")) for at in chosen]
    yield _make("many blocks", text, "".join(_render_block([a], [b]) for a, b in marks), "big.py", "search_replace")
    yield _make("many pairs", text, _render_pairs(marks), "big.py", "replace")
    hunks = "".join(_render_hunk([lines[at]], [lines[at] + "  # x"], at + 1) for at in chosen)
    yield _make("many hunks at their lines", text, _render_diff(hunks, "big.py"), "big.py", "udiff")
    hunks = "".join(_render_hunk([lines[at]], [lines[at] + "  # x"], at + 3) for at in chosen)
    yield _make("many hunks, lines off by two", text, _render_diff(hunks, "big.py"), "big.py", "udiff")
    bare = "".join(_render_hunk([a], [b]) for a, b in marks)
    yield _make("many hunks", text, _render_patch(bare, "big.py"), "big.py", "v4a")
    by_number = [
        {"start_line": at + 1, "end_line": at + 1, "old": lines[at], "new": lines[at] + "  # x"} for at in chosen
    ]
    yield _make("many numbered lines", text, json.dumps(by_number), "big.py", "lines")
    shifted = [
        {"start_line": at + 3, "end_line": at + 3, "old": lines[at], "new": lines[at] + "  # x"} for at in chosen
    ]
    yield _make("many numbered lines, all off by two", text, json.dumps(shifted), "big.py", "lines")
    yield _make("every tenth line changed", text, _join(_change_lines(lines, 10)), "big.py", "whole")
    yield _make(
        "methods in another order", text, _join(lines[len(lines) // 2 :] + lines[: len(lines) // 2]), "big.py", "whole"
    )
    yield _make("all letters of one kind", text, _render_pairs([("e", "E")], replace_all=True), "big.py", "replace")
    yield _make("a common word", text, _render_pairs([("self", "this")], replace_all=True), "big.py", "replace")


def _make_misses(sizes: _Sizes) -> Iterator[SlowInput]:
    """Yield edits that stand nowhere, or nearly: the nearest place has to be found for the answer."""
    lines = make_python(sizes.file)
    text = _join(lines)
    count = sizes.edit // 130
    missed = [
        (f"        result = compute_{at}(left, right, {at * 7})", f"        result = {at}") for at in range(count)
    ]
    yield _make(
        "many blocks that miss", text, "".join(_render_block([a], [b]) for a, b in missed), "big.py", "search_replace"
    )
    yield _make("many pairs that miss", text, _render_pairs(missed), "big.py", "replace")
    hunks = [_render_hunk([a], [b], at * 3 + 1) for at, (a, b) in enumerate(missed)]
    yield _make("many hunks that miss", text, _render_diff("".join(hunks), "big.py"), "big.py", "udiff")
    yield _make(
        "many hunks that miss",
        text,
        _render_patch("".join(_render_hunk([a], [b]) for a, b in missed), "big.py"),
        "big.py",
        "v4a",
    )
    by_number = [{"start_line": at + 9, "end_line": at + 9, "old": a, "new": b} for at, (a, b) in enumerate(missed)]
    yield _make("many numbered lines that miss", text, json.dumps(by_number), "big.py", "lines")
    foreign = [
        line.replace("self", "obj").replace("return", "yield") for line in _take_bytes(lines, sizes.edit * 9 // 10)
    ]
    yield _make(
        "a large block, each line a little off", text, _render_block(foreign, ["x"]), "big.py", "search_replace"
    )
    yield _make(
        "a large hunk, each line a little off",
        text,
        _render_patch(_render_hunk(foreign, ["x"]), "big.py"),
        "big.py",
        "v4a",
    )
    long = "x = [" + ", ".join(str(at * 37 % 1000) for at in range(sizes.edit // 5)) + "]"
    many_long = _join([long[at:] for at in range(0, 60, 12)])[: sizes.file]
    yield _make(
        "one line of 180 kB that misses",
        many_long,
        _render_block([long[: sizes.edit * 9 // 10] + "!"], ["x"]),
        "a.js",
        "search_replace",
    )
    minified = "".join(f"function f{at}(a,b){{return a+b*{at}}};" for at in range(sizes.file // 38))
    part = minified[len(minified) // 2 :][: sizes.edit * 9 // 20]
    yield _make(
        "a part of a line of 1 MB", minified, _render_pairs([(part, part.replace("a+b", "a-b"))]), "a.js", "replace"
    )
    yield _make(
        "a part of a line of 1 MB that misses", minified, _render_pairs([(part + "!", part)]), "a.js", "replace"
    )
    tiny = [(f"f{at}(a,b)", f"g{at}(a,b)") for at in range(sizes.edit // 55)]
    yield _make("many pairs in a line of 1 MB", minified, _render_pairs(tiny), "a.js", "replace")
    words = _repeat_lines(["alpha beta gamma delta epsilon zeta eta theta"], sizes.file)
    yield _make(
        "a rename that leaves all lines but one letter",
        _join(words),
        _render_pairs([("zeta", "Zeta")], replace_all=True),
        "a.txt",
        "replace",
    )


def _make_repetition(sizes: _Sizes) -> Iterator[SlowInput]:
    """Yield periodic texts: whatever is compared at each of n places over m lines takes n times m there."""
    texts = {
        "equal lines": (["    return None"], "x.py"),
        "two lines": (["    call(a)", "    call(b)"], "x.py"),
        "blank lines": ([""], "x.txt"),
        "closing brackets": (["}"], "x.c"),
        "lines of a table": ([f"| {at} | value | other |" for at in range(7)], "x.md"),
        "a period of 101 lines": ([f"  item_{at}: {at}" for at in range(101)], "x.yaml"),
    }
    for name, (period, path) in texts.items():
        lines = _repeat_lines(period, sizes.file)
        text = _join(lines)
        # A blank line is sent as two or three letters.
        part = _take_bytes(lines, sizes.edit * 9 // 20 * len(period[0] + " ") // len(period[0] + "   "))
        small = _take_bytes(lines, sizes.edit // 100)
        other = [*part[:-1], "another line"]
        yield _make(f"a large block of {name}", text, _render_block(part, other), path, "search_replace")
        yield _make(
            f"a large block of {name} and one that misses", text, _render_block(other, part), path, "search_replace"
        )
        yield _make(f"a large pair of {name}", text, _render_pairs([(_join(part), _join(other))]), path, "replace")
        yield _make(
            f"a small pair of {name}, everywhere",
            text,
            _render_pairs([(_join(small), "x\n")], replace_all=True),
            path,
            "replace",
        )
        yield _make(f"a large hunk of {name}", text, _render_diff(_render_hunk(part, other, 9), path), path, "udiff")
        yield _make(f"a hunk that removes {name}", text, _render_diff(_render_hunk(part, []), path), path, "udiff")
        yield _make(f"a large hunk of {name}", text, _render_patch(_render_hunk(part, other), path), path, "v4a")
        yield _make(f"{name} and one more", text, text + "one more\n", path, "whole")
        yield _make(f"{name}, one less", text, _join(lines[1:]), path, "whole")
        yield _make(f"{name}, a few changed", text, _join(_change_lines(lines, 1000)), path, "whole")
        one = next((line for line in period if line.strip()), "x")
        yield _make(f"every line of {name}", text, _render_pairs([(one, one + "!")], replace_all=True), path, "replace")
        twice = "".join(_render_block(small, [*small[:-1], f"line {at}"]) for at in range(40))
        yield _make(f"many blocks of {name}", text, twice, path, "search_replace")
        for count, context in ((sizes.edit // 40, 1), (sizes.edit // 300, 20)):
            kept = list(islice(cycle(period), context))
            hunks = [_render_hunk([period[0]], ["other"], at * (context + 1) + 2, kept) for at in range(count)]
            label = f"{context} lines of context in {name}"
            yield _make(
                f"many hunks with {label}", text, _render_diff("".join(hunks)[: sizes.edit], path), path, "udiff"
            )
            bare = "".join(_render_hunk([period[0]], ["other"], None, kept) for _ in range(count))[: sizes.edit]
            yield _make(f"many hunks with {label}", text, _render_patch(bare.rsplit("@@", 1)[0], path), path, "v4a")
    text = _join(_repeat_lines(["ab"], sizes.file)).replace("\n", "")
    yield _make(
        "letters of a periodic line", text, _render_pairs([("aba", "abba")], replace_all=True), "x.txt", "replace"
    )
    half = text[: sizes.edit * 9 // 20]
    yield _make("half of a periodic line", text, _render_pairs([(half, half + "c")]), "x.txt", "replace")
    yield _make(
        "half of a periodic line, everywhere",
        text,
        _render_pairs([(half, half + "c")], replace_all=True),
        "x.txt",
        "replace",
    )
    yield _make(
        "new text around every place",
        text,
        _render_pairs([("ab", "abab" * (sizes.edit // 16))], replace_all=True),
        "x.txt",
        "replace",
    )


def _make_many(sizes: _Sizes) -> Iterator[SlowInput]:
    """Yield edits of very many small parts."""
    lines = [f"value_{at} = {at}" for at in range(sizes.file // 22)]
    text = _join(lines)
    tiny = "".join(f"@@\n-{line}\n+{line}0\n" for line in lines)[: sizes.edit].rsplit("@@", 1)[0]
    yield _make("as many hunks as fit", text, _render_diff(tiny, "x.py"), "x.py", "udiff")
    yield _make("as many hunks as fit", text, _render_patch(tiny, "x.py"), "x.py", "v4a")
    same = "@@\n-value_7 = 7\n+value_7 = 8\n" * (sizes.edit // 34)
    yield _make("one hunk again and again", text, _render_patch(same, "x.py"), "x.py", "v4a")
    few = [f"case {at % 50}:" for at in range(sizes.file // 10)]
    hunks = "".join(_render_hunk([few[at]], ["default:"], at + 2) for at in range(0, sizes.edit // 4, 10))[: sizes.edit]
    yield _make(
        "ambiguous hunks, lines off by one", _join(few), _render_diff(hunks.rsplit("@@ -", 1)[0], "x.c"), "x.c", "udiff"
    )
    scoped = "".join(f"@@ case {at % 50}:\n-case 3:\n+case 4:\n" for at in range(sizes.edit // 32))
    yield _make("many hunks with scopes", _join(few), _render_patch(scoped, "x.c"), "x.c", "v4a")
    named = "".join(f"@@ value_{at}\n-value_{at} = {at}\n+value_{at} = 0\n" for at in range(sizes.edit // 56))
    yield _make("many hunks, each with a scope of its own", text, _render_patch(named, "x.py"), "x.py", "v4a")
    blocks = "".join(_render_block([line], [line + "0"]) for line in lines)[: sizes.edit].rsplit("<<<<<<<", 1)[0]
    yield _make("as many blocks as fit", text, blocks, "x.py", "search_replace")
    chain = "".join(_render_block([f"step = {at}"], [f"step = {at + 1}"]) for at in range(sizes.edit // 75))
    yield _make("blocks that build on one another", "step = 0\n" + text, chain, "x.py", "search_replace")
    hinted = "".join(
        f"<<<<<<< SEARCH\n:start_line:{at + 1}\n-------\ncase {at % 50}:\n=======\nother\n>>>>>>> REPLACE\n"
        for at in range(sizes.edit // 80)
    )
    yield _make("many blocks with line hints", _join(few), hinted, "x.c", "search_replace")
    short = [(f"_{at} = {at}\n", f"_{at} = 1{at}\n") for at in range(sizes.edit // 62)]
    yield _make("as many pairs as fit", text, _render_pairs(short), "x.py", "replace")
    yield _make(
        "many pairs, everywhere",
        text,
        _render_pairs([(f"_{at} ", f"-{at} ") for at in range(sizes.edit // 70)], replace_all=True),
        "x.py",
        "replace",
    )
    steps = [(f"step{at}.", f"step{at + 1}.") for at in range(sizes.edit // 52)]
    yield _make("pairs that build on one another", "step0.\n" + text, _render_pairs(steps), "x.py", "replace")
    overlaps = [("a" * (sizes.edit // 4) + "b", "b" + "a" * (sizes.edit // 4)), ("c" + "a" * (sizes.edit // 4), "d")]
    yield _make(
        "two pairs of letters that overlap",
        "a" * (sizes.edit // 4) + "b" + text,
        _render_pairs(overlaps),
        "x.py",
        "replace",
    )
    pieces = [line for at in range(0, 98, 2) for line in (f"value_{at} = {at}", "...")]
    yield _make("many elisions", text, _render_block(pieces[:-1], [*pieces[:-1], "x = 1"]), "x.py", "search_replace")
    dots = [line for at in range(sizes.edit // 40) for line in ("case 3:", "...")]
    yield _make(
        "elisions that fit everywhere",
        _join(few),
        _render_block([*dots[:90], "case 4:"], [*dots[:90], "case 5:"]),
        "x.c",
        "search_replace",
    )
    yield _make(
        "very many elisions", _join(few), _render_block([*dots, "case 4:"], [*dots, "case 5:"]), "x.c", "search_replace"
    )
    rows = [{"insert_line": at, "old": lines[at - 1], "new": "x"} for at in range(1, sizes.edit // 64)]
    yield _make("many insertions by line", text, json.dumps(rows), "x.py", "lines")
    commands = "".join(f"edit {at}:{at}\nx\nend_of_edit\n" for at in range(1, sizes.edit // 32))
    yield _make("many commands", text, commands, "x.py", "lines")
    records = [{"id": at, "name": f"user {at}", "active": True} for at in range(sizes.file // 60)]
    data = json.dumps(records, indent=1)
    yield _make(
        "a JSON key of every record",
        data,
        _render_pairs([('"name"', '"title"')], replace_all=True),
        "x.json",
        "replace",
    )
    yield _make(
        "a JSON key and value",
        data,
        _render_pairs([('"active": true', '"on": false')], replace_all=True),
        "x.json",
        "replace",
    )
    functions = _join([f"def load_{at}(x):\n    return x\n" for at in range(sizes.file // 38)])
    yield _make(
        "every function renamed",
        functions,
        _render_pairs([("def load_", "def read_")], replace_all=True),
        "x.py",
        "replace",
    )
    yield _make("every function gone", functions, "x = 1\n", "x.py", "whole")
    yield _make(
        "every other function gone",
        functions,
        _join([f"def load_{at}(x):\n    return x\n" for at in range(0, sizes.file // 38, 2)]),
        "x.py",
        "whole",
    )
    classes = _join([f"class A{at}:\n    def run(self):\n        return {at}\n" for at in range(sizes.file // 50)])
    yield _make(
        "every class renamed", classes, _render_pairs([("class A", "class B")], replace_all=True), "x.py", "replace"
    )
    stairs = _make_staircase(sizes.file // 60)
    yield _make("lines unique one after the other", stairs[0], stairs[1], "x.txt", "whole")


def _make_staircase(num_steps: int) -> tuple[str, str]:
    """Return two texts of which each unique line makes the next one unique, above a head too large to compare."""
    head = [["a"] * 25_000, ["b"] * 25_000]
    sides: list[list[str]] = []
    for side, letter in zip(head, "xy", strict=True):
        steps = [line for at in range(num_steps, 0, -1) for line in (f"u{at}", f"u{at + 1}", letter)]
        sides.append(side + steps)
    return _join(sides[0]), _join(sides[1])


def _make_odd_edits(sizes: _Sizes) -> Iterator[SlowInput]:
    """Yield edits whose text is hard to read: long rows of one sign, numbers, fences, markers, deep nesting."""
    size = sizes.edit
    body = "@@ -1 +1 @@\n-a\n+b\n"
    yield _make("spaces in a name", "a\n", f"--- a/x {' ' * size}y\n+++ b/x\n{body}", "x", "udiff")
    yield _make("spaces behind a name", "a\n", f"--- a/x{' ' * size}(rev\n+++ b/x\n{body}", "x", "udiff")
    yield _make(
        "a git header of spaces",
        "a\n",
        f"diff --git a/x{' x' * (size // 4)} b/x{' y' * (size // 4)}\n{body}",
        "x",
        "udiff",
    )
    yield _make(
        "a quoted name that does not end", "a\n", '--- "a' + '\\"' * (size // 2) + f"\n+++ b/x\n{body}", "x", "udiff"
    )
    yield _make("a git header of quotes", "a\n", 'diff --git "a' + '\\"' * (size // 2) + f"\n{body}", "x", "udiff")
    yield _make("a hunk header of spaces", "a\n", f"@@{' ' * size}x\n-a\n+b\n", "x", "udiff")
    yield _make("a hunk header of signs", "a\n", f"@@ {'@' * size}\n-a\n+b\n", "x", "udiff")
    yield _make("a hunk header of numbers", "a\n", f"@@ -1,{'1' * 4000} +1 @@\n-a\n+b\n", "x", "udiff")
    yield _make(
        "hunks without end", "a\n", "".join("@@ -1,999 +1,999 @@\n-a\n+b\n" for _ in range(size // 26)), "x", "udiff"
    )
    yield _make(
        "hunks with prose",
        "a\n",
        "".join("@@ -1,999 +1,999 @@\n a\nprose\n" for _ in range(size // 30)) + "+b\n",
        "x",
        "udiff",
    )
    yield _make(
        "file headers", "a\n", "".join(f"--- a/x{at}\n+++ b/x{at}\n" for at in range(size // 24)) + body, "x", "udiff"
    )
    yield _make("talk", "a\n", "talk\n\n" * (size // 6) + body, "x", "udiff")
    envelopes = "*** Begin Patch\n" * (size // 16)
    yield _make("envelopes that do not end", "a\n", envelopes, "x", "v4a")
    yield _make("envelopes that end once", "a\n", envelopes + " *** End Patch\n", "x", "v4a")
    yield _make("end markers that are indented", "a\n", "*** Begin Patch\n *** End Patch\n" * (size // 32), "x", "v4a")
    yield _make(
        "file markers",
        "a\n",
        "*** Begin Patch\n" + "".join(f"*** Delete File: x{at}\n" for at in range(size // 24)) + "*** End Patch\n",
        "x",
        "v4a",
    )
    yield _make("scopes", "a\n", _render_patch("@@ a\n" * (size // 5) + "-a\n+b\n", "x"), "x", "v4a")
    yield _make("openers", "a\n", "<<<<<<< SEARCH\n" * (size // 15), "x", "search_replace")
    yield _make("openers and closers", "a\n", "<<<<<<< SEARCH\n>>>>>>> REPLACE\n" * (size // 31), "x", "search_replace")
    yield _make(
        "dividers",
        "a\n",
        "<<<<<<< SEARCH\na\n" + "=======\n" * (size // 8) + ">>>>>>> REPLACE\n",
        "x",
        "search_replace",
    )
    yield _make(
        "labels", "a\n", (("x" * 40 + "/") * (size // 41)) + "\n" + _render_block(["a"], ["b"]), "x", "search_replace"
    )
    yield _make("a label of dots", "a\n", "." * size + "x!\n" + _render_block(["a"], ["b"]), "x", "search_replace")
    yield _make("a label of dashes", "a\n", "-" * size + "!\n" + _render_block(["a"], ["b"]), "x", "search_replace")
    yield _make(
        "a label of words", "a\n", "a." * (size // 2) + "!\n" + _render_block(["a"], ["b"]), "x", "search_replace"
    )
    yield _make("backslashes", "a\n", _render_block(["a"], ["\\" * (size // 2)] * 2), "x", "search_replace")
    yield _make(
        "numbered lines",
        "a\n" * 20_000,
        _render_block([f"{at} | a" for at in range(1, size // 24)], [f"{at} | b" for at in range(1, size // 24)]),
        "x",
        "search_replace",
    )
    yield _make("nested lists", "a\n", "[" * (size // 2) + "]" * (size // 2), "x", "replace")
    yield _make("nested edits", "a\n", '{"edits":[' * (size // 24) + "]}" * (size // 24), "x", "replace")
    yield _make(
        "nested lists that can be read",
        "a\n",
        "[" * 900 + '{"old_string":"a","new_string":"b"}' + "]" * 900,
        "x",
        "replace",
    )
    yield _make("escapes", "a\n", _render_pairs([("a", "\x01" * (size // 6))]), "x", "replace")
    yield _make("fences", "a\n", "".join(f"```a{at}\n" for at in range(size // 10)), "x", "whole")
    yield _make(
        "fences of all lengths", "a\n", "".join("`" * (3 + at) + "a\n" for at in range(int(size**0.5))), "x", "whole"
    )
    for sign in " \t.`'\"\\/#*<-([{":
        row = sign * (size // 2)
        yield _make(
            f"a row of {sign!r}", "a\n" + row + "\n", _render_block([row], [row + "x"]), "x.js", "search_replace"
        )
        yield _make(f"a new row of {sign!r}", "a\n", f"{row}x\n", "x.js", "whole")
        yield _make(f"a comment of {sign!r}", "a\n", _render_pairs([("a", f"// {row} x")]), "x.js", "replace")
    yield _make(
        "spaced dots", "a\n", _render_block(["a"], ["# " + "... " * (size // 4) + "x"]), "x.py", "search_replace"
    )
    levels = int((2 * size) ** 0.5) // 2
    deep = _join(["  " * at + f"if x{at}:" for at in range(levels)] + ["  " * levels + "pass"])
    yield _make("deep indentation", deep, _render_block(["if x0:"], ["if y:"]), "x.py", "search_replace")
    yield _make(
        "deep brackets",
        "(" * (sizes.file // 2) + ")" * (sizes.file // 2) + "\na\n",
        _render_pairs([("\na\n", "\nb\n")]),
        "x.py",
        "replace",
    )
    yield _make(
        "deep JSON",
        '{"a":' * (sizes.file // 6) + "1" + "}" * (sizes.file // 6),
        _render_pairs([("1", "2")]),
        "x.json",
        "replace",
    )
    yield _make(
        "broken code",
        "".join("def (" for _ in range(sizes.file // 5)) + "\na\n",
        _render_pairs([("\na\n", "\nb\n")]),
        "x.py",
        "replace",
    )
    yield _make(
        "unclosed strings", '"' * (sizes.file // 2) + "\na\n", _render_pairs([("\na\n", "\nb\n")]), "x.js", "replace"
    )


def _make_odd_bytes(sizes: _Sizes) -> Iterator[SlowInput]:
    """Yield files whose bytes are hard: mixed endings, letters that fold, other encodings."""
    lines = [f"zeile {at % 97} — “ä” e\u0301" for at in range(sizes.file // 28)]
    part = [line.replace("“", '"').replace("”", '"').replace("—", "-") for line in lines[: sizes.edit // 60]]
    yield _make("letters that fold", _join(lines), _render_block(part, [*part, "x"]), "x.txt", "search_replace")
    yield _make(
        "letters that fold in a small block", _join(lines), _render_block(part[:3], ["x"]), "x.txt", "search_replace"
    )
    marks = "e" + "\u0301" * (sizes.edit // 4)
    yield _make("a row of combining marks", marks + "\na\n", _render_block(["a"], [marks]), "x.txt", "search_replace")
    mixed = "".join(f"line {at % 5}" + ("\r\n" if at % 3 else "\n") for at in range(sizes.file // 8))
    yield _make("mixed endings", mixed, _render_block(["line 4", "line 0"] * 20, ["x"]), "x.txt", "search_replace")
    yield _make(
        "mixed endings, every line", mixed, _render_pairs([("line 4", "line 5")], replace_all=True), "x.txt", "replace"
    )
    yield _make(
        "mixed endings, whole", mixed, "".join(f"line {at % 7}\n" for at in range(sizes.edit // 7)), "x.txt", "whole"
    )
    equal = "".join("}" + ("\r\n" if at % 2 else "\n") for at in range(sizes.file // 3))
    yield _make("mixed endings of equal lines", equal, "}\n" * (sizes.edit // 2), "x.txt", "whole")
    latin = "".join(f"gr\u00fc\u00dfe {at % 50}\n" for at in range(sizes.file // 10))
    edit = _render_pairs([("\u00fc\u00dfe", "uesse")], replace_all=True)
    yield SlowInput("replace: Windows-1252", latin.encode("cp1252"), edit, "x.txt", "replace")
    yield SlowInput("replace: UTF-16", latin.encode("utf-16"), edit, "x.txt", "replace")


def _make_lazy_snippets(sizes: _Sizes) -> Iterator[SlowInput]:
    """Yield lazy snippets; those of a file of 400 kB come again for one of 1 MB."""
    for size, label in ((sizes.lazy_file, "400 kB"), (sizes.file, "1 MB")):
        lines = make_python(size)
        text = _join(lines)
        part = _take_bytes(lines, sizes.edit * 9 // 10, len(lines) // 3)
        heads = [at for at, line in enumerate(lines) if line.startswith("    def ")]
        few = [
            line
            for at in heads[:: len(heads) // 8]
            for line in (_MARKER, lines[at], lines[at + 1], "        self.x = 1")
        ]
        many = [line for at in heads[: sizes.edit // 90] for line in (lines[at], "        # ... existing code ...", "")]
        numbers = [f"line {at}" for at in range(size // 12)]
        elsewhere = _join([numbers[at * 7919 % len(numbers)] for at in range(min(len(numbers), sizes.edit // 12))])
        yield _make(f"lines in another order, {label}", _join(numbers), elsewhere, "a.txt", "lazy")
        yield _make(
            f"lines in another order amid placeholders, {label}",
            _join(numbers),
            f"# ...\n{elsewhere}# ...\n",
            "a.txt",
            "lazy",
        )
        yield _make(f"a few places, {label}", text, _join([*few, _MARKER]), "big.py", "lazy")
        yield _make(f"many places, {label}", text, _join(many), "big.py", "lazy")
        yield _make(
            f"a large part, {label}", text, _join([_MARKER, *_change_lines(part, 50), _MARKER]), "big.py", "lazy"
        )
        yield _make(f"a large part as it is, {label}", text, _join([_MARKER, *part, _MARKER]), "big.py", "lazy")
        yield _make(f"a part without markers, {label}", text, _join(_change_lines(part, 50)), "big.py", "lazy")
        yield _make(
            f"a block of other lines, {label}",
            text,
            _join([_MARKER, *(f"    x{at} = {at}" for at in range(sizes.edit // 22)), _MARKER]),
            "big.py",
            "lazy",
        )
        equal = _repeat_lines(["    return None"], size)
        yield _make(
            f"a block of equal lines, {label}",
            _join(equal),
            _join([_MARKER, *_take_bytes(equal, sizes.edit * 9 // 10), _MARKER]),
            "x.py",
            "lazy",
        )
        yield _make(
            f"many blocks of equal lines, {label}",
            _join(equal),
            _join(["    return None", _MARKER] * (sizes.edit // 40)),
            "x.py",
            "lazy",
        )
        period = _repeat_lines(["def f():", "    a()", "    b()", ""], size)
        yield _make(
            f"a periodic block, {label}",
            _join(period),
            _join([_MARKER, *_take_bytes(period, sizes.edit * 9 // 10), "x", _MARKER]),
            "x.py",
            "lazy",
        )
        data = json.dumps(
            [{"id": at, "name": f"user {at}", "tags": [at, at + 1]} for at in range(size // 70)], indent=1
        )
        some = data.split("\n")[1000 : 1000 + sizes.edit // 25]
        yield _make(
            f"a part of JSON, {label}",
            data,
            _join(["// ... existing code ...", *some, '"new": 1,', "// ... existing code ..."]),
            "x.json",
            "lazy",
        )
        classes = [f"class A{at}:\n    def run(self):\n        return {at}\n" for at in range(size // 50)]
        shown = "".join(f"class A{at}:\n    def run(self):\n        return -{at}\n" for at in range(sizes.edit // 60))
        yield _make(f"many classes, {label}", _join(classes), shown + f"\n{_MARKER}\n", "x.py", "lazy")
        grown = [
            line
            for at in heads[:: max(1, len(heads) * 620 // sizes.edit)]
            for line in (_MARKER, *lines[at : at + 10], "", f"    def added_{at}(self):", f"        return {at}", "")
        ]
        yield _make(f"many new methods, {label}", text, _join([*grown, _MARKER]), "big.py", "lazy")
        fields = [f"def added_{at}(): return {at}" for at in range(sizes.edit // 40)]
        yield _make(
            f"many new lines at an edge, {label}", text, _join([*lines[:8], "", *fields, "", _MARKER]), "big.py", "lazy"
        )
        rules = "".join(f".a{at} {{\n  color: red;\n}}\n" for at in range(size // 26))
        yield _make(f"many rules, {label}", rules, "/* ... */\n.a9 {\n  color: blue;\n}\n/* ... */\n", "x.css", "lazy")
    size = sizes.edit
    yield _make("rows of dots", "x = {\n}\n", "x = {\n" + "    ...\n" * (size // 8) + "}\n", "x.js", "lazy")
    yield _make("markers", "x = 1\n", "x = 1\n" + f"{_MARKER}\n" * (size // 24), "x.py", "lazy")
    yield _make("markers and one line", "x = 1\ny = 2\n", f"x = 1\n{_MARKER}\n" * (size // 30), "x.py", "lazy")
    unclosed = 'x = "' + '\\"' * (size // 2)
    yield _make("escaped quotes", "a = 1\nb = 2\n", f"{_MARKER}\na = 1\n{unclosed}\n{_MARKER}\n", "x.js", "lazy")
    yield _make(
        "a head that does not end",
        "a = 1\nb = 2\n",
        f"{_MARKER}\na = 1\nf({') {' * (size // 3)}\n{_MARKER}\n",
        "x.js",
        "lazy",
    )
    yield _make(
        "types before a name",
        "a = 1\nb = 2\n",
        f"{_MARKER}\na = 1\n{'int ' * (size // 4)}x\n{_MARKER}\n",
        "x.c",
        "lazy",
    )
    yield _make(
        "note words", "a = 1\nb = 2\n", f"{_MARKER}\na = 1\n# {'a.' * (size // 2)} x\n{_MARKER}\n", "x.py", "lazy"
    )
    yield _make(
        "open brackets",
        "a = 1\nb = 2\n",
        f"{_MARKER}\na = 1\n{'(' * (size // 2)}{')' * (size // 2)}\n{_MARKER}\n",
        "x.js",
        "lazy",
    )
    levels = int(size**0.5)
    nested = _join(["  " * at + f"if x{at}:" for at in range(levels // 2)])
    yield _make("deep indentation in the snippet", "a = 1\n", f"{_MARKER}\n{nested}{_MARKER}\n", "x.py", "lazy")
    yield _make("deep indentation in the file", nested * 2, f"{_MARKER}\nx = 1\n{_MARKER}\n", "x.py", "lazy")
    pretty = _join(
        [" " * at + '{"a":' for at in range(levels)]
        + [" " * levels + "1"]
        + [" " * at + "}" for at in range(levels - 1, -1, -1)]
    )
    yield _make("deep JSON", pretty, '// ... existing code ...\n"b": 1\n// ... existing code ...\n', "x.json", "lazy")
    digits = "1" * (size // 10)
    yield _make("numbers", "a = 1\n" * 100, f"{_MARKER}\nx = {digits}\n{_MARKER}\n", "x.py", "lazy")


_FAMILIES: tuple[Callable[[_Sizes], Iterator[SlowInput]], ...] = (
    _make_real_files,
    _make_misses,
    _make_repetition,
    _make_many,
    _make_odd_edits,
    _make_odd_bytes,
    _make_lazy_snippets,
)
