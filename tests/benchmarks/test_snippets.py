"""Lazy snippets made from edits: those with one reading, and imitations of what models write."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.cases import DEFAULT_CASES, TEST_WORDING, Case
from benchmarks.edit_formats import diff_texts
from benchmarks.scoring import hides_deletion
from benchmarks.snippets import STYLES, Pair, imitate, make_imitations, make_merge, make_snippet, read_pairs
from benchmarks.snippets.imitations import LAYOUTS
from benchmarks.snippets.imitations import STYLES as IMITATED_STYLES
from editor.grammars import find_language
from editor.placeholders import is_placeholder
from editor.syntax import survey
from tests.benchmarks.test_cases import SAMPLES, write

ROOT = Path(__file__).resolve().parents[2]
_STOCK = '''"""Keeps a stock of goods."""

import json
from pathlib import Path


class Stock:
    """What is there, by name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.items: dict[str, int] = {}

    def read(self) -> None:
        data = self.path.read_text()
        self.items = json.loads(data)

    def write(self) -> None:
        data = json.dumps(self.items)
        self.path.write_text(data)

    def add(self, name: str, number: int) -> None:
        known = self.items.get(name, 0)
        self.items[name] = known + number
        self.write()

    def total(self) -> int:
        return sum(self.items.values())


def main() -> None:
    stock = Stock(Path("stock.json"))
    stock.read()
    stock.add("apples", 3)
    print(stock.total())
'''
PYTHON = (
    _STOCK,
    _STOCK.replace(
        "        known =", "        if number < 0:\n            raise ValueError(name)\n        known ="
    ).replace("    print(stock.total())\n", '    print("total", stock.total())\n'),
)
_QUEUE = """import { log } from './log';
import { now } from './time';

export class Queue {
  private items: string[] = [];

  push(item: string) {
    log('push', item);
    this.items.push(item);
  }

  pop(): string | undefined {
    log('pop');
    return this.items.shift();
  }

  get length() {
    return this.items.length;
  }

  clear() {
    this.items = [];
  }
}

export function drain(queue: Queue) {
  const out: string[] = [];
  while (queue.length) {
    out.push(queue.pop()!);
  }
  return out;
}
"""
TYPESCRIPT = (
    _QUEUE,
    _QUEUE.replace("    return this.items.shift();", "    const item = this.items.shift();\n    return item;"),
)
DELETION = (PYTHON[0], PYTHON[0].replace("        self.write()\n", ""))


def is_marker(line: str) -> bool:
    return is_placeholder(line) or line.strip() == "..."


def added(before: str, after: str) -> list[str]:
    a, b = before.split("\n"), after.split("\n")
    return [line for span in diff_texts(a, b) for line in b[span.b_start : span.b_end]]


def shown(snippet: str) -> list[str]:
    return [line for line in snippet.split("\n") if line.strip() and not is_marker(line)]


def made(pair: tuple[str, str], path: str, style: str, seed: int) -> str:
    snippet = make_snippet(*pair, path, style, seed)
    assert snippet is not None
    return snippet


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(("pair", "path"), [(PYTHON, "stock.py"), (TYPESCRIPT, "queue.ts")])
def test_every_new_line_is_shown_in_order_and_nothing_is_made_up(style: str, pair: tuple[str, str], path: str) -> None:
    strip = style == "wrong_indentation"
    after = [line.strip() if strip else line for line in pair[1].split("\n")]
    for seed in range(8):
        lines = [line.strip() if strip else line for line in shown(made(pair, path, style, seed))]
        rest = iter(after)
        assert all(line in rest for line in lines)
        assert {line.strip() if strip else line for line in added(*pair)} <= set(lines)
        assert len(lines) < len([line for line in after if line.strip()])


@pytest.mark.parametrize("style", STYLES)
def test_a_snippet_is_the_same_in_every_process(style: str) -> None:
    program = (
        "import json, sys; from benchmarks.snippets import make_snippet;"
        "before, after, style = json.load(sys.stdin);"
        "print(json.dumps([make_snippet(before, after, 'stock.py', style, seed) for seed in range(9)]))"
    )
    request = json.dumps([*PYTHON, style])
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, input=request, capture_output=True, text=True, check=True
    )
    there = json.loads(done.stdout)
    assert there == [make_snippet(*PYTHON, "stock.py", style, seed) for seed in range(9)]
    assert len(set(there)) > 1


def test_markers_stand_wherever_lines_are_left_out() -> None:
    for seed in range(8):
        lines = made(PYTHON, "stock.py", "markers", seed).split("\n")
        assert is_marker(lines[0])
        assert not is_marker(lines[-2])  # the file's last line is shown
        assert sum(map(is_marker, lines)) == 2


def test_bare_hunks_have_no_marker() -> None:
    for seed in range(8):
        assert not any(map(is_marker, made(PYTHON, "stock.py", "bare_hunks", seed).split("\n")))


def test_missing_markers_leaves_one_out_at_least_and_sometimes_all() -> None:
    found = {sum(map(is_marker, made(PYTHON, "stock.py", "missing_markers", seed).split("\n"))) for seed in range(20)}
    assert found == {0, 1}


def test_signatures_show_what_is_around_a_change() -> None:
    for seed in range(8):
        lines = shown(made(TYPESCRIPT, "queue.ts", "signatures", seed))
        assert lines[0] == "export class Queue {"
        assert lines[-1] == "}"
        assert "  pop(): string | undefined {" in lines
        assert "  push(item: string) {" not in lines


def test_a_bracket_inside_a_body_closes_no_definition() -> None:
    after = PYTHON[1].replace("        self.write()\n", "        self.write(\n            name,\n        )\n")
    before = after.replace("        if number < 0:\n            raise ValueError(name)\n", "")
    assert "        )" not in shown(made((before, after), "stock.py", "signatures", 0))


def test_a_whole_definition_is_shown_to_its_end_and_with_its_class_where_its_name_is_not_enough() -> None:
    lines = shown(made(TYPESCRIPT, "queue.ts", "whole_definition", 0))
    assert lines[0] == "  pop(): string | undefined {"
    assert lines[-1] == "  }"
    twice = tuple(text + "\nclass Other {\n  pop() {\n    return 1;\n  }\n}\n" for text in TYPESCRIPT)
    lines = shown(made((twice[0], twice[1]), "queue.ts", "whole_definition", 0))
    assert lines[0] == "export class Queue {"
    assert lines[-1] == "}"


def test_wrong_indentation_is_wrong_and_as_a_whole() -> None:
    for seed in range(8):
        lines = made(PYTHON, "stock.py", "wrong_indentation", seed).split("\n")
        (check,) = [line for line in lines if line.strip() == "if number < 0:"]
        (fault,) = [line for line in lines if line.strip() == "raise ValueError(name)"]
        assert not check.startswith("        if") or check.startswith("\t")
        assert len(check) - len(check.lstrip()) < len(fault) - len(fault.lstrip())


@pytest.mark.parametrize("style", ["markers", "signatures", "wrong_indentation", "whole_definition"])
def test_a_deletion_is_shown_as_its_two_neighbours(style: str) -> None:
    lines = [line.strip() for line in made(DELETION, "stock.py", style, 1).split("\n")]
    at = lines.index("self.items[name] = known + number")
    assert lines[at + 1] == ""
    if style != "whole_definition":
        assert lines[at + 2] == "def total(self) -> int:"


@pytest.mark.parametrize("seed", range(8))
def test_without_markers_a_deletion_could_be_an_omission(seed: int) -> None:
    assert make_snippet(*DELETION, "stock.py", "bare_hunks", seed) is None
    two = (PYTHON[0], PYTHON[1].replace("        self.write()\n", ""))
    lines = made(two, "stock.py", "missing_markers", seed).split("\n")
    assert any(map(is_marker, lines[1:-2]))


LINES = "".join(f"line {number}\n" for number in range(40))
CHANGED = LINES.replace("line 20\n", "line twenty\n")


@pytest.mark.parametrize("style", ["bare_hunks", "markers", "missing_markers"])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (LINES, CHANGED.removesuffix("\n")),
        (LINES, LINES.replace("line 20\n", "line 20  \n")),
        (LINES, "\n" + LINES),
        (LINES, LINES + "\n"),
        (LINES, LINES),
        (LINES.replace("line 3\n", "line 3\r\n"), CHANGED),
        (LINES, LINES.replace("line 20\n", "# ... existing code ...\n")),
        ("same\nx\n" * 40, "same\nx\n" * 20 + "new\n" + "same\nx\n" * 20),
        ("up\ndown\n" + LINES + "up\nmiddle\ndown\n", "up\ndown\n" + LINES + "up\ndown\n"),
        (LINES, LINES.replace("line 0\n", "")),
        (LINES, LINES.replace("line 39\n", "")),
    ],
)
def test_what_cannot_be_told_is_not_said(style: str, before: str, after: str) -> None:
    assert made((LINES, CHANGED), "x.py", style, 0)
    assert make_snippet(before, after, "x.py", style, 0) is None


def test_line_endings_of_the_file_are_not_said() -> None:
    crlf = tuple(text.replace("\n", "\r\n") for text in PYTHON)
    snippet = make_snippet(crlf[0], crlf[1], "stock.py", "markers", 3)
    assert snippet is not None
    assert "\r" not in snippet


def test_an_unknown_style_is_an_error() -> None:
    with pytest.raises(KeyError):
        make_snippet(*PYTHON, "stock.py", "terse", 0)


def test_pairs_are_read_from_every_shape_once(tmp_path: Path) -> None:
    codex = {"id": "p", "input": {"a": "x\n", "gone": "z\n"}, "patch": "", "expected": {"a": "y\n"}}
    refused = SAMPLES["aider_refused"]
    write(
        tmp_path, "x.jsonl", SAMPLES["aider"], SAMPLES["session"], refused, SAMPLES["edit_eval"], SAMPLES["unit_test"]
    )
    write(tmp_path, "y.jsonl", codex | {"expects_rejection": False}, codex | {"expects_rejection": True})
    found = read_pairs(tmp_path)
    assert [(pair.id, pair.before, pair.after) for pair in found] == [
        ("a", "x\n", "y\n"),
        ("E/1", "a\nb\nc\n", "a\nb2\nc\n"),
    ]
    assert [pair.id for pair in read_pairs(tmp_path, min_lines=2)] == ["E/1"]


def stock_pairs() -> list[Pair]:
    """Ten files, each with one class of its own name that has two hunks, and functions that stay as they are."""
    out = []
    for number in range(10):
        extra = "".join(
            f"\n\ndef f{number}_{at}(x: int) -> int:\n    y = x + {at}\n    return y * {number}\n" for at in range(8)
        )
        texts = [(text + extra).replace("Stock", f"Stock{number}").replace("main", f"main{number}") for text in PYTHON]
        out.append(Pair(f"p{number}", f"p{number}.py", texts[0], texts[1]))
    return out


@pytest.mark.parametrize("num_lines", [100, 300, 1000])
@pytest.mark.parametrize("num_hunks", [1, 3, 10])
def test_a_merge_has_about_the_lines_and_the_hunks_that_were_asked_for(num_lines: int, num_hunks: int) -> None:
    merge = make_merge(stock_pairs(), num_lines, num_hunks, seed=1)
    a, b = merge.before.split("\n"), merge.after.split("\n")
    assert len(diff_texts(a, b)) == num_hunks
    assert abs(len(a) - num_lines) <= max(0.1 * num_lines, 15)
    for text in (merge.before, merge.after):
        seen = survey(text, find_language(merge.path))
        assert seen is not None
        assert not seen.error_lines
        names = [symbol.name for symbol in seen.symbols if symbol.depth == 0]
        assert len(names) == len(set(names))
    assert merge == make_merge(stock_pairs(), num_lines, num_hunks, seed=1)
    assert merge != make_merge(stock_pairs(), num_lines, num_hunks, seed=2)


def test_the_edits_and_their_neighbours_are_the_same_whatever_the_length() -> None:
    found = []
    for num_lines in (300, 2000):
        parts = make_merge(stock_pairs(), num_lines, 3, seed=1).after.strip("\n").split("\n\n\n")
        edited = [at for at, part in enumerate(parts) if "if number < 0" in part or '"total"' in part]
        found.append(sorted(tuple(parts[at - 1 : at + 2]) for at in edited))
    assert len(found[0]) == 3
    assert found[0] == found[1]


def test_what_is_edited_comes_once_however_often_others_come_again() -> None:
    long = make_merge(stock_pairs(), 3000, 3, seed=1).after
    classes = {text.partition(":")[0]: text for text in long.split("\nclass ")[1:]}
    edited = [name for name, text in classes.items() if "if number < 0" in text]
    assert len(edited) == 3
    assert any(f"{name}2" in classes for name in classes)
    assert not any(f"{name}2" in classes for name in edited)


def test_no_merge_without_enough_edits() -> None:
    with pytest.raises(ValueError, match="50 hunks"):
        make_merge(stock_pairs(), 300, 50, seed=0)


def test_the_recorded_edits_can_be_said_in_most_styles() -> None:
    if not DEFAULT_CASES.exists():
        pytest.skip(f"recorded edits are not at hand: {DEFAULT_CASES}")
    found = read_pairs(DEFAULT_CASES, min_lines=80)[::8]
    for style in STYLES:
        said = [make_snippet(pair.before, pair.after, pair.path, style, 0) is not None for pair in found]
        assert sum(said) > len(said) / 2, style


BEFORE, AFTER = PYTHON
FEWER = BEFORE.replace("        known = self.items.get(name, 0)\n", "").replace("known + number", "number")
SHORTER = BEFORE.replace("        self.write()\n", "")


def _text(style: str, after: str = AFTER, seed: int = 0, before: str = BEFORE) -> str:
    made = imitate(before, after, "stock.py", style, seed)
    assert made is not None
    return made.text


def _markers(text: str) -> int:
    return sum(is_placeholder(line) for line in text.split("\n"))


@pytest.mark.parametrize("style", ["minimal", "context", "signature", "no_markers", "chat", "odd_marker", "dedented"])
def test_every_new_line_is_shown(style: str) -> None:
    shown = {line.strip() for line in _text(style).split("\n")}
    assert {line.strip() for line in AFTER.split("\n")} - {line.strip() for line in BEFORE.split("\n")} <= shown


def test_outer_markers_are_often_missing() -> None:
    after = BEFORE.replace("known + number", "known - number")
    texts = [_text("minimal", after, seed).strip().split("\n") for seed in range(40)]
    ends = Counter((is_placeholder(text[0]), is_placeholder(text[-1])) for text in texts)
    assert len(ends) == 4


def test_a_style_without_markers_has_none() -> None:
    assert _markers(_text("no_markers")) == 0
    assert _markers(_text("dedented")) == 0


def test_a_dedented_excerpt_begins_at_column_0() -> None:
    assert any(line and not line[0].isspace() for line in _text("dedented").split("\n")[:1])


def test_only_the_changed_line_is_shown_where_it_replaces_one_like_it() -> None:
    after = BEFORE.replace('Path("stock.json")', 'Path("goods.json")')
    assert _text("only_changed", after) == '    stock = Stock(Path("goods.json"))\n'
    assert imitate(BEFORE, AFTER, "stock.py", "only_changed", 0) is None


def test_a_signature_leaves_out_what_stays_of_the_body() -> None:
    after = BEFORE.replace("def total(self) -> int:", "def total(self, start: int = 0) -> int:")
    text = _text("signature", after)
    assert "    def total(self, start: int = 0) -> int:\n" in text
    assert "self.path" not in text


def test_a_removal_is_told_by_a_comment_by_the_instruction_or_not_at_all() -> None:
    told = imitate(BEFORE, SHORTER, "stock.py", "deletion_told", 0)
    assert told is not None
    assert "write" in told.instruction
    assert "self.write()" not in told.text
    assert "#" in _text("deletion_comment", SHORTER)
    assert imitate(BEFORE, AFTER, "stock.py", "deletion_omitted", 0) is None


def test_a_chat_answer_has_fences_in_any_order() -> None:
    after = FEWER.replace('"""Keeps a stock of goods."""', '"""Keeps the stock."""')
    texts = [_text("chat", after, seed) for seed in range(20)]
    assert all(text.count("```") % 2 == 0 for text in texts)
    assert {text.count("```") for text in texts} == {2, 4}
    assert len({text.index("Keeps the stock") < text.index("= number") for text in texts}) == 2


def test_a_snippet_is_the_same_for_the_same_seed() -> None:
    for style in IMITATED_STYLES:
        for after in (AFTER, SHORTER):
            pair = [imitate(BEFORE, after, "stock.py", style, 7) for _ in range(2)]
            assert pair[0] == pair[1]


def test_only_the_test_part_has_its_wording_and_its_layout() -> None:
    def made(style: str, part: str) -> str:
        found = [imitate(BEFORE, AFTER, "stock.py", style, seed, part) for seed in range(30)]  # type: ignore[arg-type]
        return "\n".join(one.text for one in found if one is not None)

    assert TEST_WORDING not in made("odd_marker", "train")
    assert TEST_WORDING in made("odd_marker", "test")
    assert "1. " not in made("chat", "train")
    assert "1. " in made("chat", "test")
    assert len(LAYOUTS) == 3


def test_styles_have_equal_shares(tmp_path: Path) -> None:
    rows = [
        {"repo": "a/b", "commit": f"{at:08}", "path": f"stock{at}.py", "original": BEFORE, "expected": expected}
        for at in range(40)
        for expected in (AFTER, SHORTER, BEFORE.replace("stock.json", "goods.json"))
    ]
    with gzip.open(tmp_path / "pairs.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    found = make_imitations(tmp_path, 48, 0, "train")
    assert Counter(case.style for case in found) == dict.fromkeys(IMITATED_STYLES, 4)
    assert make_imitations(tmp_path, 48, 0, "test") == []


def _snippet(edit: str, instruction: str = "") -> Case:
    return Case("x", "lazy", "lazy", "stock.py", BEFORE, edit, SHORTER, instruction=instruction)


def test_a_removal_that_nothing_tells_is_hidden() -> None:
    shown = "        self.items[name] = known + number\n\n    def total(self) -> int:\n"
    assert hides_deletion(_snippet(shown))
    assert not hides_deletion(_snippet(shown, "Remove the write"))
    assert not hides_deletion(_snippet(f"Remove the write:\n```python\n{shown}```\n"))
    assert not hides_deletion(_snippet(f"# ... existing code ...\n{shown}"))
