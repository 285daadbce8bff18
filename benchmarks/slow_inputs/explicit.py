"""Slow inputs in explicit formats: large edits, edits that miss, repetition, very many small parts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import cycle, islice

from benchmarks.slow_inputs.targets import (
    Sizes,
    SlowInput,
    Target,
    change_lines,
    join,
    make_python,
    render_block,
    render_hunk,
    repeat_lines,
    take_bytes,
)


def make_real_files(sizes: Sizes) -> Iterator[SlowInput]:
    """Yield large edits of large files as people have them: nothing about them is odd but their size."""
    lines = make_python(sizes.file)
    text = join(lines)
    old = take_bytes(lines, sizes.edit * 9 // 20, len(lines) // 3)
    new = change_lines(old, 20)
    file = Target(text, "big.py")
    yield file.block("one large block", old, new)
    yield file.replace("one large pair", [(join(old), join(new))])
    near = [*old[:-1], old[-1] + "x"]
    yield file.block("one large block that misses by a letter", near, new)
    yield file.replace("one large pair that misses by a letter", [(join(near), join(new))])
    indented = [line[4:] if line.startswith("    ") else line for line in old]
    yield file.block("one large block at another depth", indented, new)
    yield file.udiff("one large hunk", render_hunk(old, new, 7))
    yield file.v4a("one large hunk", render_hunk(old, new))
    yield file.udiff("one large hunk that misses", render_hunk(near, new, 7))
    heads = [at for at, line in enumerate(lines) if line.startswith("    def ")]
    chosen = heads[:: max(1, len(heads) * 260 // sizes.edit)]
    marks = [(lines[at], lines[at].replace("(self", "(self, more")) for at in chosen]
    yield file.send("many blocks", "".join(render_block([a], [b]) for a, b in marks), "search_replace")
    yield file.replace("many pairs", marks)
    hunks = "".join(render_hunk([lines[at]], [lines[at] + "  # x"], at + 1) for at in chosen)
    yield file.udiff("many hunks at their lines", hunks)
    hunks = "".join(render_hunk([lines[at]], [lines[at] + "  # x"], at + 3) for at in chosen)
    yield file.udiff("many hunks, lines off by two", hunks)
    bare = "".join(render_hunk([a], [b]) for a, b in marks)
    yield file.v4a("many hunks", bare)
    by_number = [
        {"start_line": at + 1, "end_line": at + 1, "old": lines[at], "new": lines[at] + "  # x"} for at in chosen
    ]
    yield file.send("many numbered lines", json.dumps(by_number), "lines")
    shifted = [
        {"start_line": at + 3, "end_line": at + 3, "old": lines[at], "new": lines[at] + "  # x"} for at in chosen
    ]
    yield file.send("many numbered lines, all off by two", json.dumps(shifted), "lines")
    yield file.whole("every tenth line changed", join(change_lines(lines, 10)))
    yield file.whole("methods in another order", join(lines[len(lines) // 2 :] + lines[: len(lines) // 2]))
    yield file.replace("all letters of one kind", [("e", "E")], everywhere=True)
    yield file.replace("a common word", [("self", "this")], everywhere=True)


def make_misses(sizes: Sizes) -> Iterator[SlowInput]:
    """Yield edits that stand nowhere, or nearly: the nearest place has to be found for the answer."""
    lines = make_python(sizes.file)
    text = join(lines)
    count = sizes.edit // 130
    missed = [
        (f"        result = compute_{at}(left, right, {at * 7})", f"        result = {at}") for at in range(count)
    ]
    file = Target(text, "big.py")
    yield file.send("many blocks that miss", "".join(render_block([a], [b]) for a, b in missed), "search_replace")
    yield file.replace("many pairs that miss", missed)
    hunks = [render_hunk([a], [b], at * 3 + 1) for at, (a, b) in enumerate(missed)]
    yield file.udiff("many hunks that miss", "".join(hunks))
    yield file.v4a("many hunks that miss", "".join(render_hunk([a], [b]) for a, b in missed))
    by_number = [{"start_line": at + 9, "end_line": at + 9, "old": a, "new": b} for at, (a, b) in enumerate(missed)]
    yield file.send("many numbered lines that miss", json.dumps(by_number), "lines")
    foreign = [
        line.replace("self", "obj").replace("return", "yield") for line in take_bytes(lines, sizes.edit * 9 // 10)
    ]
    yield file.block("a large block, each line a little off", foreign, ["x"])
    yield file.v4a("a large hunk, each line a little off", render_hunk(foreign, ["x"]))
    long = "x = [" + ", ".join(str(at * 37 % 1000) for at in range(sizes.edit // 5)) + "]"
    many_long = join([long[at:] for at in range(0, 60, 12)])[: sizes.file]
    file = Target(many_long, "a.js")
    yield file.block("one line of 180 kB that misses", [long[: sizes.edit * 9 // 10] + "!"], ["x"])
    minified = "".join(f"function f{at}(a,b){{return a+b*{at}}};" for at in range(sizes.file // 38))
    part = minified[len(minified) // 2 :][: sizes.edit * 9 // 20]
    file = Target(minified, "a.js")
    yield file.replace("a part of a line of 1 MB", [(part, part.replace("a+b", "a-b"))])
    yield file.replace("a part of a line of 1 MB that misses", [(part + "!", part)])
    tiny = [(f"f{at}(a,b)", f"g{at}(a,b)") for at in range(sizes.edit // 55)]
    yield file.replace("many pairs in a line of 1 MB", tiny)
    words = repeat_lines(["alpha beta gamma delta epsilon zeta eta theta"], sizes.file)
    file = Target(join(words), "a.txt")
    yield file.replace("a rename that leaves all lines but one letter", [("zeta", "Zeta")], everywhere=True)


def make_repetition(sizes: Sizes) -> Iterator[SlowInput]:
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
        lines = repeat_lines(period, sizes.file)
        text = join(lines)
        # A blank line is sent as two or three letters.
        part = take_bytes(lines, sizes.edit * 9 // 20 * len(period[0] + " ") // len(period[0] + "   "))
        small = take_bytes(lines, sizes.edit // 100)
        other = [*part[:-1], "another line"]
        file = Target(text, path)
        yield file.block(f"a large block of {name}", part, other)
        yield file.block(f"a large block of {name} and one that misses", other, part)
        yield file.replace(f"a large pair of {name}", [(join(part), join(other))])
        yield file.replace(f"a small pair of {name}, everywhere", [(join(small), "x\n")], everywhere=True)
        yield file.udiff(f"a large hunk of {name}", render_hunk(part, other, 9))
        yield file.udiff(f"a hunk that removes {name}", render_hunk(part, []))
        yield file.v4a(f"a large hunk of {name}", render_hunk(part, other))
        yield file.whole(f"{name} and one more", text + "one more\n")
        yield file.whole(f"{name}, one less", join(lines[1:]))
        yield file.whole(f"{name}, a few changed", join(change_lines(lines, 1000)))
        one = next((line for line in period if line.strip()), "x")
        yield file.replace(f"every line of {name}", [(one, one + "!")], everywhere=True)
        twice = "".join(render_block(small, [*small[:-1], f"line {at}"]) for at in range(40))
        yield file.send(f"many blocks of {name}", twice, "search_replace")
        for count, context in ((sizes.edit // 40, 1), (sizes.edit // 300, 20)):
            kept = list(islice(cycle(period), context))
            hunks = [render_hunk([period[0]], ["other"], at * (context + 1) + 2, kept) for at in range(count)]
            label = f"{context} lines of context in {name}"
            file = Target(text, path)
            yield file.udiff(f"many hunks with {label}", "".join(hunks)[: sizes.edit])
            bare = "".join(render_hunk([period[0]], ["other"], None, kept) for _ in range(count))[: sizes.edit]
            yield file.v4a(f"many hunks with {label}", bare.rsplit("@@", 1)[0])
    text = join(repeat_lines(["ab"], sizes.file)).replace("\n", "")
    file = Target(text, "x.txt")
    yield file.replace("letters of a periodic line", [("aba", "abba")], everywhere=True)
    half = text[: sizes.edit * 9 // 20]
    yield file.replace("half of a periodic line", [(half, half + "c")])
    yield file.replace("half of a periodic line, everywhere", [(half, half + "c")], everywhere=True)
    yield file.replace("new text around every place", [("ab", "abab" * (sizes.edit // 16))], everywhere=True)


def make_many(sizes: Sizes) -> Iterator[SlowInput]:
    """Yield edits of very many small parts."""
    lines = [f"value_{at} = {at}" for at in range(sizes.file // 22)]
    text = join(lines)
    tiny = "".join(f"@@\n-{line}\n+{line}0\n" for line in lines)[: sizes.edit].rsplit("@@", 1)[0]
    file = Target(text, "x.py")
    yield file.udiff("as many hunks as fit", tiny)
    yield file.v4a("as many hunks as fit", tiny)
    same = "@@\n-value_7 = 7\n+value_7 = 8\n" * (sizes.edit // 34)
    yield file.v4a("one hunk again and again", same)
    few = [f"case {at % 50}:" for at in range(sizes.file // 10)]
    hunks = "".join(render_hunk([few[at]], ["default:"], at + 2) for at in range(0, sizes.edit // 4, 10))[: sizes.edit]
    file = Target(join(few), "x.c")
    yield file.udiff("ambiguous hunks, lines off by one", hunks.rsplit("@@ -", 1)[0])
    scoped = "".join(f"@@ case {at % 50}:\n-case 3:\n+case 4:\n" for at in range(sizes.edit // 32))
    yield file.v4a("many hunks with scopes", scoped)
    named = "".join(f"@@ value_{at}\n-value_{at} = {at}\n+value_{at} = 0\n" for at in range(sizes.edit // 56))
    file = Target(text, "x.py")
    yield file.v4a("many hunks, each with a scope of its own", named)
    blocks = "".join(render_block([line], [line + "0"]) for line in lines)[: sizes.edit].rsplit("<<<<<<<", 1)[0]
    yield file.send("as many blocks as fit", blocks, "search_replace")
    chain = "".join(render_block([f"step = {at}"], [f"step = {at + 1}"]) for at in range(sizes.edit // 75))
    file = Target("step = 0\n" + text, "x.py")
    yield file.send("blocks that build on one another", chain, "search_replace")
    hinted = "".join(
        f"<<<<<<< SEARCH\n:start_line:{at + 1}\n-------\ncase {at % 50}:\n=======\nother\n>>>>>>> REPLACE\n"
        for at in range(sizes.edit // 80)
    )
    file = Target(join(few), "x.c")
    yield file.send("many blocks with line hints", hinted, "search_replace")
    short = [(f"_{at} = {at}\n", f"_{at} = 1{at}\n") for at in range(sizes.edit // 62)]
    file = Target(text, "x.py")
    yield file.replace("as many pairs as fit", short)
    yield file.replace(
        "many pairs, everywhere", [(f"_{at} ", f"-{at} ") for at in range(sizes.edit // 70)], everywhere=True
    )
    steps = [(f"step{at}.", f"step{at + 1}.") for at in range(sizes.edit // 52)]
    file = Target("step0.\n" + text, "x.py")
    yield file.replace("pairs that build on one another", steps)
    overlaps = [("a" * (sizes.edit // 4) + "b", "b" + "a" * (sizes.edit // 4)), ("c" + "a" * (sizes.edit // 4), "d")]
    file = Target("a" * (sizes.edit // 4) + "b" + text, "x.py")
    yield file.replace("two pairs of letters that overlap", overlaps)
    pieces = [line for at in range(0, 98, 2) for line in (f"value_{at} = {at}", "...")]
    file = Target(text, "x.py")
    yield file.block("many elisions", pieces[:-1], [*pieces[:-1], "x = 1"])
    dots = [line for at in range(sizes.edit // 40) for line in ("case 3:", "...")]
    file = Target(join(few), "x.c")
    yield file.block("elisions that fit everywhere", [*dots[:90], "case 4:"], [*dots[:90], "case 5:"])
    yield file.block("very many elisions", [*dots, "case 4:"], [*dots, "case 5:"])
    rows = [{"insert_line": at, "old": lines[at - 1], "new": "x"} for at in range(1, sizes.edit // 64)]
    file = Target(text, "x.py")
    yield file.send("many insertions by line", json.dumps(rows), "lines")
    commands = "".join(f"edit {at}:{at}\nx\nend_of_edit\n" for at in range(1, sizes.edit // 32))
    yield file.send("many commands", commands, "lines")
    records = [{"id": at, "name": f"user {at}", "active": True} for at in range(sizes.file // 60)]
    data = json.dumps(records, indent=1)
    file = Target(data, "x.json")
    yield file.replace("a JSON key of every record", [('"name"', '"title"')], everywhere=True)
    yield file.replace("a JSON key and value", [('"active": true', '"on": false')], everywhere=True)
    functions = join([f"def load_{at}(x):\n    return x\n" for at in range(sizes.file // 38)])
    file = Target(functions, "x.py")
    yield file.replace("every function renamed", [("def load_", "def read_")], everywhere=True)
    yield file.whole("every function gone", "x = 1\n")
    yield file.whole(
        "every other function gone",
        join([f"def load_{at}(x):\n    return x\n" for at in range(0, sizes.file // 38, 2)]),
    )
    classes = join([f"class A{at}:\n    def run(self):\n        return {at}\n" for at in range(sizes.file // 50)])
    file = Target(classes, "x.py")
    yield file.replace("every class renamed", [("class A", "class B")], everywhere=True)
    stairs = make_staircase(sizes.file // 60)
    file = Target(stairs[0], "x.txt")
    yield file.whole("lines unique one after the other", stairs[1])


def make_staircase(num_steps: int) -> tuple[str, str]:
    """Return two texts of which each unique line makes the next one unique, above a head too large to compare."""
    head = [["a"] * 25_000, ["b"] * 25_000]
    sides: list[list[str]] = []
    for side, letter in zip(head, "xy", strict=True):
        steps = [line for at in range(num_steps, 0, -1) for line in (f"u{at}", f"u{at + 1}", letter)]
        sides.append(side + steps)
    return join(sides[0]), join(sides[1])
