"""Slow inputs that are hard to read: odd edits, odd bytes, and lazy snippets."""

from __future__ import annotations

import json
from collections.abc import Iterator

from benchmarks.slow_inputs.targets import (
    MARKER,
    Sizes,
    SlowInput,
    Target,
    change_lines,
    join,
    make_python,
    render_block,
    render_pairs,
    repeat_lines,
    take_bytes,
)


def make_odd_edits(sizes: Sizes) -> Iterator[SlowInput]:
    """Yield edits whose text is hard to read: long rows of one sign, numbers, fences, markers, deep nesting."""
    size = sizes.edit
    body = "@@ -1 +1 @@\n-a\n+b\n"
    file = Target("a\n", "x")
    yield file.send("spaces in a name", f"--- a/x {' ' * size}y\n+++ b/x\n{body}", "udiff")
    yield file.send("spaces behind a name", f"--- a/x{' ' * size}(rev\n+++ b/x\n{body}", "udiff")
    yield file.send(
        "a git header of spaces", f"diff --git a/x{' x' * (size // 4)} b/x{' y' * (size // 4)}\n{body}", "udiff"
    )
    yield file.send("a quoted name that does not end", '--- "a' + '\\"' * (size // 2) + f"\n+++ b/x\n{body}", "udiff")
    yield file.send("a git header of quotes", 'diff --git "a' + '\\"' * (size // 2) + f"\n{body}", "udiff")
    yield file.send("a hunk header of spaces", f"@@{' ' * size}x\n-a\n+b\n", "udiff")
    yield file.send("a hunk header of signs", f"@@ {'@' * size}\n-a\n+b\n", "udiff")
    yield file.send("a hunk header of numbers", f"@@ -1,{'1' * 4000} +1 @@\n-a\n+b\n", "udiff")
    yield file.send("hunks without end", "".join("@@ -1,999 +1,999 @@\n-a\n+b\n" for _ in range(size // 26)), "udiff")
    yield file.send(
        "hunks with prose", "".join("@@ -1,999 +1,999 @@\n a\nprose\n" for _ in range(size // 30)) + "+b\n", "udiff"
    )
    yield file.send("file headers", "".join(f"--- a/x{at}\n+++ b/x{at}\n" for at in range(size // 24)) + body, "udiff")
    yield file.send("talk", "talk\n\n" * (size // 6) + body, "udiff")
    envelopes = "*** Begin Patch\n" * (size // 16)
    yield file.send("envelopes that do not end", envelopes, "v4a")
    yield file.send("envelopes that end once", envelopes + " *** End Patch\n", "v4a")
    yield file.send("end markers that are indented", "*** Begin Patch\n *** End Patch\n" * (size // 32), "v4a")
    yield file.send(
        "file markers",
        "*** Begin Patch\n" + "".join(f"*** Delete File: x{at}\n" for at in range(size // 24)) + "*** End Patch\n",
        "v4a",
    )
    yield file.v4a("scopes", "@@ a\n" * (size // 5) + "-a\n+b\n")
    yield file.send("openers", "<<<<<<< SEARCH\n" * (size // 15), "search_replace")
    yield file.send("openers and closers", "<<<<<<< SEARCH\n>>>>>>> REPLACE\n" * (size // 31), "search_replace")
    yield file.send(
        "dividers", "<<<<<<< SEARCH\na\n" + "=======\n" * (size // 8) + ">>>>>>> REPLACE\n", "search_replace"
    )
    yield file.send("labels", (("x" * 40 + "/") * (size // 41)) + "\n" + render_block(["a"], ["b"]), "search_replace")
    yield file.send("a label of dots", "." * size + "x!\n" + render_block(["a"], ["b"]), "search_replace")
    yield file.send("a label of dashes", "-" * size + "!\n" + render_block(["a"], ["b"]), "search_replace")
    yield file.send("a label of words", "a." * (size // 2) + "!\n" + render_block(["a"], ["b"]), "search_replace")
    yield file.block("backslashes", ["a"], ["\\" * (size // 2)] * 2)
    file = Target("a\n" * 20_000, "x")
    yield file.block(
        "numbered lines", [f"{at} | a" for at in range(1, size // 24)], [f"{at} | b" for at in range(1, size // 24)]
    )
    file = Target("a\n", "x")
    yield file.send("nested lists", "[" * (size // 2) + "]" * (size // 2), "replace")
    yield file.send("nested edits", '{"edits":[' * (size // 24) + "]}" * (size // 24), "replace")
    yield file.send(
        "nested lists that can be read", "[" * 900 + '{"old_string":"a","new_string":"b"}' + "]" * 900, "replace"
    )
    yield file.replace("escapes", [("a", "\x01" * (size // 6))])
    yield file.whole("fences", "".join(f"```a{at}\n" for at in range(size // 10)))
    yield file.whole("fences of all lengths", "".join("`" * (3 + at) + "a\n" for at in range(int(size**0.5))))
    for sign in " \t.`'\"\\/#*<-([{":
        row = sign * (size // 2)
        file = Target("a\n" + row + "\n", "x.js")
        yield file.block(f"a row of {sign!r}", [row], [row + "x"])
        file = Target("a\n", "x.js")
        yield file.whole(f"a new row of {sign!r}", f"{row}x\n")
        yield file.replace(f"a comment of {sign!r}", [("a", f"// {row} x")])
    file = Target("a\n", "x.py")
    yield file.block("spaced dots", ["a"], ["# " + "... " * (size // 4) + "x"])
    levels = int((2 * size) ** 0.5) // 2
    deep = join(["  " * at + f"if x{at}:" for at in range(levels)] + ["  " * levels + "pass"])
    file = Target(deep, "x.py")
    yield file.block("deep indentation", ["if x0:"], ["if y:"])
    file = Target("(" * (sizes.file // 2) + ")" * (sizes.file // 2) + "\na\n", "x.py")
    yield file.replace("deep brackets", [("\na\n", "\nb\n")])
    file = Target('{"a":' * (sizes.file // 6) + "1" + "}" * (sizes.file // 6), "x.json")
    yield file.replace("deep JSON", [("1", "2")])
    file = Target("".join("def (" for _ in range(sizes.file // 5)) + "\na\n", "x.py")
    yield file.replace("broken code", [("\na\n", "\nb\n")])
    file = Target('"' * (sizes.file // 2) + "\na\n", "x.js")
    yield file.replace("unclosed strings", [("\na\n", "\nb\n")])


def make_odd_bytes(sizes: Sizes) -> Iterator[SlowInput]:
    """Yield files whose bytes are hard: mixed endings, letters that fold, other encodings."""
    lines = [f"zeile {at % 97} — “ä” e\u0301" for at in range(sizes.file // 28)]
    part = [line.replace("“", '"').replace("”", '"').replace("—", "-") for line in lines[: sizes.edit // 60]]
    file = Target(join(lines), "x.txt")
    yield file.block("letters that fold", part, [*part, "x"])
    yield file.block("letters that fold in a small block", part[:3], ["x"])
    marks = "e" + "\u0301" * (sizes.edit // 4)
    file = Target(marks + "\na\n", "x.txt")
    yield file.block("a row of combining marks", ["a"], [marks])
    mixed = "".join(f"line {at % 5}" + ("\r\n" if at % 3 else "\n") for at in range(sizes.file // 8))
    file = Target(mixed, "x.txt")
    yield file.block("mixed endings", ["line 4", "line 0"] * 20, ["x"])
    yield file.replace("mixed endings, every line", [("line 4", "line 5")], everywhere=True)
    yield file.whole("mixed endings, whole", "".join(f"line {at % 7}\n" for at in range(sizes.edit // 7)))
    equal = "".join("}" + ("\r\n" if at % 2 else "\n") for at in range(sizes.file // 3))
    file = Target(equal, "x.txt")
    yield file.whole("mixed endings of equal lines", "}\n" * (sizes.edit // 2))
    latin = "".join(f"gr\u00fc\u00dfe {at % 50}\n" for at in range(sizes.file // 10))
    edit = render_pairs([("\u00fc\u00dfe", "uesse")], replace_all=True)
    yield SlowInput("replace: Windows-1252", latin.encode("cp1252"), edit, "x.txt", "replace")
    yield SlowInput("replace: UTF-16", latin.encode("utf-16"), edit, "x.txt", "replace")


def make_lazy_snippets(sizes: Sizes) -> Iterator[SlowInput]:
    """Yield lazy snippets; those of a file of 400 kB come again for one of 1 MB."""
    for size, label in ((sizes.lazy_file, "400 kB"), (sizes.file, "1 MB")):
        lines = make_python(size)
        text = join(lines)
        part = take_bytes(lines, sizes.edit * 9 // 10, len(lines) // 3)
        heads = [at for at, line in enumerate(lines) if line.startswith("    def ")]
        few = [
            line
            for at in heads[:: len(heads) // 8]
            for line in (MARKER, lines[at], lines[at + 1], "        self.x = 1")
        ]
        many = [line for at in heads[: sizes.edit // 90] for line in (lines[at], "        # ... existing code ...", "")]
        numbers = [f"line {at}" for at in range(size // 12)]
        elsewhere = join([numbers[at * 7919 % len(numbers)] for at in range(min(len(numbers), sizes.edit // 12))])
        file = Target(join(numbers), "a.txt")
        yield file.send(f"lines in another order, {label}", elsewhere, "lazy")
        yield file.send(f"lines in another order amid placeholders, {label}", f"# ...\n{elsewhere}# ...\n", "lazy")
        file = Target(text, "big.py")
        yield file.send(f"a few places, {label}", join([*few, MARKER]), "lazy")
        yield file.send(f"many places, {label}", join(many), "lazy")
        yield file.send(f"a large part, {label}", join([MARKER, *change_lines(part, 50), MARKER]), "lazy")
        yield file.send(f"a large part as it is, {label}", join([MARKER, *part, MARKER]), "lazy")
        yield file.send(f"a part without markers, {label}", join(change_lines(part, 50)), "lazy")
        yield file.send(
            f"a block of other lines, {label}",
            join([MARKER, *(f"    x{at} = {at}" for at in range(sizes.edit // 22)), MARKER]),
            "lazy",
        )
        equal = repeat_lines(["    return None"], size)
        file = Target(join(equal), "x.py")
        yield file.send(
            f"a block of equal lines, {label}",
            join([MARKER, *take_bytes(equal, sizes.edit * 9 // 10), MARKER]),
            "lazy",
        )
        yield file.send(
            f"many blocks of equal lines, {label}", join(["    return None", MARKER] * (sizes.edit // 40)), "lazy"
        )
        period = repeat_lines(["def f():", "    a()", "    b()", ""], size)
        file = Target(join(period), "x.py")
        yield file.send(
            f"a periodic block, {label}",
            join([MARKER, *take_bytes(period, sizes.edit * 9 // 10), "x", MARKER]),
            "lazy",
        )
        data = json.dumps(
            [{"id": at, "name": f"user {at}", "tags": [at, at + 1]} for at in range(size // 70)], indent=1
        )
        some = data.split("\n")[1000 : 1000 + sizes.edit // 25]
        file = Target(data, "x.json")
        yield file.send(
            f"a part of JSON, {label}",
            join(["// ... existing code ...", *some, '"new": 1,', "// ... existing code ..."]),
            "lazy",
        )
        classes = [f"class A{at}:\n    def run(self):\n        return {at}\n" for at in range(size // 50)]
        shown = "".join(f"class A{at}:\n    def run(self):\n        return -{at}\n" for at in range(sizes.edit // 60))
        file = Target(join(classes), "x.py")
        yield file.send(f"many classes, {label}", shown + f"\n{MARKER}\n", "lazy")
        grown = [
            line
            for at in heads[:: max(1, len(heads) * 620 // sizes.edit)]
            for line in (MARKER, *lines[at : at + 10], "", f"    def added_{at}(self):", f"        return {at}", "")
        ]
        file = Target(text, "big.py")
        yield file.send(f"many new methods, {label}", join([*grown, MARKER]), "lazy")
        fields = [f"def added_{at}(): return {at}" for at in range(sizes.edit // 40)]
        yield file.send(f"many new lines at an edge, {label}", join([*lines[:8], "", *fields, "", MARKER]), "lazy")
        rules = "".join(f".a{at} {{\n  color: red;\n}}\n" for at in range(size // 26))
        file = Target(rules, "x.css")
        yield file.send(f"many rules, {label}", "/* ... */\n.a9 {\n  color: blue;\n}\n/* ... */\n", "lazy")
    size = sizes.edit
    file = Target("x = {\n}\n", "x.js")
    yield file.send("rows of dots", "x = {\n" + "    ...\n" * (size // 8) + "}\n", "lazy")
    file = Target("x = 1\n", "x.py")
    yield file.send("markers", "x = 1\n" + f"{MARKER}\n" * (size // 24), "lazy")
    file = Target("x = 1\ny = 2\n", "x.py")
    yield file.send("markers and one line", f"x = 1\n{MARKER}\n" * (size // 30), "lazy")
    unclosed = 'x = "' + '\\"' * (size // 2)
    file = Target("a = 1\nb = 2\n", "x.js")
    yield file.send("escaped quotes", f"{MARKER}\na = 1\n{unclosed}\n{MARKER}\n", "lazy")
    yield file.send("a head that does not end", f"{MARKER}\na = 1\nf({') {' * (size // 3)}\n{MARKER}\n", "lazy")
    file = Target("a = 1\nb = 2\n", "x.c")
    yield file.send("types before a name", f"{MARKER}\na = 1\n{'int ' * (size // 4)}x\n{MARKER}\n", "lazy")
    file = Target("a = 1\nb = 2\n", "x.py")
    yield file.send("note words", f"{MARKER}\na = 1\n# {'a.' * (size // 2)} x\n{MARKER}\n", "lazy")
    file = Target("a = 1\nb = 2\n", "x.js")
    yield file.send("open brackets", f"{MARKER}\na = 1\n{'(' * (size // 2)}{')' * (size // 2)}\n{MARKER}\n", "lazy")
    levels = int(size**0.5)
    nested = join(["  " * at + f"if x{at}:" for at in range(levels // 2)])
    file = Target("a = 1\n", "x.py")
    yield file.send("deep indentation in the snippet", f"{MARKER}\n{nested}{MARKER}\n", "lazy")
    file = Target(nested * 2, "x.py")
    yield file.send("deep indentation in the file", f"{MARKER}\nx = 1\n{MARKER}\n", "lazy")
    pretty = join(
        [" " * at + '{"a":' for at in range(levels)]
        + [" " * levels + "1"]
        + [" " * at + "}" for at in range(levels - 1, -1, -1)]
    )
    file = Target(pretty, "x.json")
    yield file.send("deep JSON", '// ... existing code ...\n"b": 1\n// ... existing code ...\n', "lazy")
    digits = "1" * (size // 10)
    file = Target("a = 1\n" * 100, "x.py")
    yield file.send("numbers", f"{MARKER}\nx = {digits}\n{MARKER}\n", "lazy")
