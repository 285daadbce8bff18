"""The checks: each holds on a right result, and fails on the damage that it is there for."""

from __future__ import annotations

import pytest

from editor.formats import parse
from editor.merge import merge
from editor.types import Check, Merged
from editor.verify import passed, verify

NAMES = (
    "marker_leak",
    "added_lines_present",
    "symbols_kept",
    "lines_removed",
    "elided_lines_kept",
    "parse_errors",
    "no_op",
    "truncated_tail",
)
ORIGINAL = """\
class Calculator {
  add(a) {
    this.result += a;
    return this;
  }

  sub(a) {
    this.result -= a;
    return this;
  }

  mul(a) {
    this.result *= a;
    return this;
  }

  reset() {
    this.result = 0;
  }
}
"""
LAZY = """\
  // ... existing code ...
  sub(a) {
    check(a);
    this.result -= a;
    return this;
  }
  // ... existing code ...
"""
RIGHT = ORIGINAL.replace("  sub(a) {\n", "  sub(a) {\n    check(a);\n")
BLOCK = """\
<<<<<<< SEARCH
    this.result -= a;
=======
    check(a);
    this.result -= a;
>>>>>>> REPLACE
"""


def failed(merged: str, edit: str = LAZY, original: str = ORIGINAL, language: str | None = "javascript") -> list[str]:
    checks = verify(original, merged, parse(edit), language)
    assert tuple(check.name for check in checks) == NAMES
    assert all(check.detail for check in checks)
    return [check.name for check in checks if not check.ok]


@pytest.mark.parametrize("edit", [LAZY, BLOCK])
@pytest.mark.parametrize("language", ["javascript", None])
def test_a_right_result_passes(edit: str, language: str | None) -> None:
    assert failed(RIGHT, edit, language=language) == []


@pytest.mark.parametrize("edit", [LAZY, BLOCK])
def test_a_dropped_method_is_found(edit: str) -> None:
    damaged = RIGHT.replace(RIGHT[RIGHT.index("  mul") : RIGHT.index("  reset")], "")
    assert "symbols_kept" in failed(damaged, edit)


def test_a_dropped_overload_is_found() -> None:
    original = "class A {\n  int f(int a) { return 1; }\n  int f(long a) { return 2; }\n  int g() { return 3; }\n}\n"
    edit = "<<<<<<< SEARCH\n  int g() { return 3; }\n=======\n  int g() { return 4; }\n>>>>>>> REPLACE\n"
    damaged = "class A {\n  int f(int a) { return 1; }\n  int g() { return 4; }\n}\n"
    assert failed(damaged, edit, original, "java") == ["symbols_kept"]


def test_a_written_placeholder_is_found() -> None:
    assert "marker_leak" in failed(RIGHT.replace("  mul(a)", "  // ... existing code ...\n  mul(a)"))
    assert "marker_leak" in failed(RIGHT.replace("check(a);", "check(a); // ... existing code ..."))


def test_bare_dots_between_braces_are_found() -> None:
    assert "marker_leak" in failed(RIGHT.replace("  mul(a)", "  ...\n  mul(a)"), language=None)


def test_a_small_file_may_be_rewritten_whole() -> None:
    original = "def f(x):\n    y = 0\n    for z in x:\n        y += z\n    return y\n"
    assert failed("def f(x):\n    return sum(x)\n", "def f(x):\n    return sum(x)\n", original, "python") == []


def test_a_placeholder_that_was_there_is_no_leak() -> None:
    assert failed("// ...\n" + RIGHT, original="// ...\n" + ORIGINAL) == []


@pytest.mark.parametrize("edit", [LAZY, BLOCK])
def test_a_line_that_was_not_added_is_found(edit: str) -> None:
    assert "added_lines_present" in failed(ORIGINAL.replace("this.result = 0", "this.result = 1"), edit)


def test_nothing_done_is_found() -> None:
    assert "no_op" in failed(ORIGINAL)
    assert "no_op" in failed(ORIGINAL, BLOCK)
    assert "no_op" not in failed(RIGHT, original=RIGHT)


def test_a_lost_tail_is_found() -> None:
    assert "truncated_tail" in failed(RIGHT[: RIGHT.index("  reset")])
    assert "truncated_tail" in failed(RIGHT[: RIGHT.index("  mul")], BLOCK)


def test_generation_that_was_cut_is_told() -> None:
    checks = verify(ORIGINAL, RIGHT, parse(LAZY), "javascript", truncated=True)
    assert [check.name for check in checks if not check.ok] == ["truncated_tail"]


def test_new_syntax_errors_are_found_and_old_ones_forgiven() -> None:
    assert "parse_errors" in failed(RIGHT.replace("    check(a);\n", "    check(a;\n    check(a);\n"))
    assert failed("let = ;\n" + RIGHT, original="let = ;\n" + ORIGINAL) == []


def test_a_file_replaced_by_the_snippet_is_found() -> None:
    snippet = "sub(a) {\n  check(a);\n}\n"
    names = failed(snippet, snippet)
    assert "lines_removed" in names
    assert "symbols_kept" in names


def test_most_of_a_file_gone_is_found_without_a_grammar() -> None:
    original = "".join(f"key{number} = {number}\n" for number in range(40))
    assert "lines_removed" in failed("key0 = 1\nkey39 = 39\n", "key0 = 1\n# ...\nkey39 = 39\n", original, None)


def test_what_the_edit_takes_away_may_go() -> None:
    block = "<<<<<<< SEARCH\n  reset() {\n    this.result = 0;\n  }\n=======\n>>>>>>> REPLACE\n"
    without = ORIGINAL.replace("  reset() {\n    this.result = 0;\n  }\n", "")
    assert failed(without, block) == []
    lazy = "// ...\n  mul(a) {\n    this.result *= a;\n    return this;\n  }\n}\n"
    assert failed(ORIGINAL.replace("\n  reset() {\n    this.result = 0;\n  }\n", ""), lazy) == []


def test_a_renamed_class_keeps_its_methods() -> None:
    lazy = "class Machine {\n  add(a) {\n// ...\n"
    assert failed(ORIGINAL.replace("Calculator", "Machine"), lazy) == []


def test_passed() -> None:
    assert passed((Check("a", True, ""), Check("b", True, "")))
    assert not passed((Check("a", True, ""), Check("b", False, "")))


def test_what_the_merger_makes_passes() -> None:
    outcome = merge(ORIGINAL, parse(BLOCK))
    assert isinstance(outcome, Merged)
    assert passed(verify(ORIGINAL, outcome.text, parse(BLOCK), "javascript"))


def test_one_line_dropped_from_what_a_placeholder_stands_for_is_enough() -> None:
    """Seen with a 0.5B model: the guard behind the placeholder was gone, and everything else was right."""
    edit = "  // ... existing code ...\n  reset() {\n    check();\n    // ... existing code ...\n  }\n"
    original = ORIGINAL.replace("    this.result = 0;\n", "    this.result = 0;\n    this.log.clear();\n")
    right = original.replace("  reset() {\n", "  reset() {\n    check();\n")
    assert failed(right, edit, original) == []
    assert failed(right.replace("    this.log.clear();\n", ""), edit, original) == ["elided_lines_kept"]


def test_a_deletion_that_the_snippet_shows_is_not_a_dropped_line() -> None:
    edit = "  // ... existing code ...\n  mul(a) {\n    this.result *= a;\n  }\n  // ... existing code ...\n"
    merged = ORIGINAL.replace("    this.result *= a;\n    return this;\n", "    this.result *= a;\n")
    assert failed(merged, edit) == []
