"""Snippets that imitate a model's: what each style shows, what only the test part has, which deletions are hidden."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.cases import TEST_WORDING, Case
from benchmarks.scoring import hides_deletion
from benchmarks.snippets import imitate, make_imitations
from benchmarks.snippets.imitations import LAYOUTS, STYLES
from editor.placeholders import is_placeholder
from tests.benchmarks.test_snippets import PYTHON

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
    for style in STYLES:
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
    assert Counter(case.style for case in found) == dict.fromkeys(STYLES, 4)
    assert make_imitations(tmp_path, 48, 0, "test") == []


def _snippet(edit: str, instruction: str = "") -> Case:
    return Case("x", "lazy", "lazy", "stock.py", BEFORE, edit, SHORTER, instruction=instruction)


def test_a_removal_that_nothing_tells_is_hidden() -> None:
    shown = "        self.items[name] = known + number\n\n    def total(self) -> int:\n"
    assert hides_deletion(_snippet(shown))
    assert not hides_deletion(_snippet(shown, "Remove the write"))
    assert not hides_deletion(_snippet(f"Remove the write:\n```python\n{shown}```\n"))
    assert not hides_deletion(_snippet(f"# ... existing code ...\n{shown}"))
