"""The checks: each holds on a right result, and fails on the damage that it is there for.

So does the check for new comments that may stand for lines which an explicit edit removes.
"""

from __future__ import annotations

import json

import pytest

from editor.diff import render_unified_diff
from editor.formats import parse
from editor.grammars import find_language
from editor.merge import merge
from editor.types import (
    Check,
    FormatName,
    Hint,
    Merged,
    ParsedEdit,
    Replacement,
    Sketch,
    Substitution,
    Substitutions,
    Unresolved,
)
from editor.verify import DAMAGE, is_accepted, verify
from tests.editor.recorded import rows

NAMES = (
    "marker_leak",
    "added_lines_present",
    "symbols_kept",
    "lines_removed",
    "elided_lines_kept",
    "parse_errors",
    "no_op",
    "truncated_tail",
    "accounted",
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


def failed(
    merged: str, edit: str | ParsedEdit = LAZY, original: str = ORIGINAL, language: str | None = "javascript"
) -> list[str]:
    checks = verify(original, merged, parse(edit) if isinstance(edit, str) else edit, language)
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


def test_what_stands_in_a_definition_goes_with_it() -> None:
    send = "        def send():\n            post(1)\n            post(2)\n"
    gone = f"    def publish(self):\n{send}\n        throttle(send)\n\n"
    kept = "    def close(self):\n        stop(1)\n"
    original = "class Status:\n    def open(self):\n        start(1)\n\n" + gone + kept
    edit = parse(f"class Status:\n    # ... existing code ...\n    # removed: publish()\n\n{kept}", "lazy")
    assert failed(original.replace(gone, ""), edit, original, "python") == []


def test_an_end_that_a_snippet_says_to_be_removed_may_go() -> None:
    tail = "\n#if 0\n" + "".join(f"DISABLED({name})\n" for name in ("scalbn", "lgamma_r", "drem", "gamma")) + "#endif\n"
    kept = "#ifdef HAVE_A\nENABLED(a)\n#else\nDISABLED(a)\n#endif\n"
    original = "int start;\n\n" + kept + tail
    says = "/* removed: the #if 0 block with scalbn, lgamma_r, drem and gamma that ended the file */\n"
    assert failed(original.removesuffix(tail), parse("/* ... */\n" + kept + says, "lazy"), original, None) == []
    assert "truncated_tail" in failed(original.removesuffix(tail), parse("/* ... */\n" + kept, "lazy"), original, None)


def test_an_edit_made_to_the_letter_by_a_model_is_not_held_to_the_grammar() -> None:
    original = "def f():\n    return 1\n"
    edit = parse("<<<<<<< SEARCH\n    return 1\n=======\n    return 1 +\n>>>>>>> REPLACE\n")
    as_sent = original.replace("1", "1 +")
    found = {check.name: check.ok for check in verify(original, as_sent, edit, "python", by_model=True)}
    assert found["parse_errors"]
    assert all(found.values())


def test_a_dropped_overload_is_found() -> None:
    original = "class A {\n  int f(int a) { return 1; }\n  int f(long a) { return 2; }\n  int g() { return 3; }\n}\n"
    edit = "<<<<<<< SEARCH\n  int g() { return 3; }\n=======\n  int g() { return 4; }\n>>>>>>> REPLACE\n"
    damaged = "class A {\n  int f(int a) { return 1; }\n  int g() { return 4; }\n}\n"
    assert failed(damaged, edit, original, "java") == ["symbols_kept", "accounted"]


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
    without = ORIGINAL.replace("\n  reset() {\n    this.result = 0;\n  }\n", "")
    assert failed(without, lazy) == ["accounted"], "a whole definition goes only by name"
    assert is_accepted(verify(ORIGINAL, without, parse(lazy), "javascript", instructions=("Remove reset.",)))


def test_a_renamed_class_keeps_its_methods() -> None:
    lazy = "class Machine {\n  add(a) {\n// ...\n"
    assert failed(ORIGINAL.replace("Calculator", "Machine"), lazy) == []


def test_the_lenient_policy_rejects_only_what_nobody_can_mean() -> None:
    names = {name: is_accepted([Check(name, False, "")], "lenient") for name in (*NAMES, "region_kept")}
    assert {name for name, ok in names.items() if not ok} == DAMAGE
    assert not any(is_accepted([Check(name, False, "")]) for name in NAMES)
    assert is_accepted([Check("a", True, ""), Check("b", True, "")])


def test_what_the_merger_makes_passes() -> None:
    outcome = merge(ORIGINAL, parse(BLOCK))
    assert isinstance(outcome, Merged)
    assert is_accepted(verify(ORIGINAL, outcome.text, parse(BLOCK), "javascript"))


def test_one_line_dropped_from_what_a_placeholder_stands_for_is_enough() -> None:
    """Seen with a 0.5B model: the guard behind the placeholder was gone, and everything else was right."""
    edit = "  // ... existing code ...\n  reset() {\n    check();\n    // ... existing code ...\n  }\n"
    original = ORIGINAL.replace("    this.result = 0;\n", "    this.result = 0;\n    this.log.clear();\n")
    right = original.replace("  reset() {\n", "  reset() {\n    check();\n")
    assert failed(right, edit, original) == []
    assert failed(right.replace("    this.log.clear();\n", ""), edit, original) == ["elided_lines_kept", "accounted"]


def test_a_deletion_that_the_snippet_shows_is_not_a_dropped_line() -> None:
    edit = "  // ... existing code ...\n  mul(a) {\n    this.result *= a;\n  }\n  // ... existing code ...\n"
    merged = ORIGINAL.replace("    this.result *= a;\n    return this;\n", "    this.result *= a;\n")
    assert failed(merged, edit) == []


def replaced(*items: tuple[str, str], replace_all: bool = False) -> ParsedEdit:
    changes = Substitutions(tuple(Substitution(old, new, replace_all) for old, new in items))
    return ParsedEdit("replace", changes, "")


def hunks(*changes: Replacement) -> ParsedEdit:
    return ParsedEdit("udiff", changes, "", ordered=True)


def whole(text: str) -> ParsedEdit:
    return ParsedEdit("whole", Sketch((tuple(text.rstrip("\n").split("\n")),), False, False, complete=True), "")


def test_a_substitution_must_stand_in_the_result_to_the_character() -> None:
    edit = replaced(("+= a", "+= Number(a)"))
    right = ORIGINAL.replace("+= a", "+= Number(a)")
    assert failed(right, edit) == []
    assert failed(right.replace("Number(a)", "Number( a)"), edit) == ["added_lines_present", "accounted"]
    assert failed(ORIGINAL, edit) == ["added_lines_present", "no_op", "accounted"]


def test_a_substitution_that_a_later_one_changes_again_need_not_stand() -> None:
    assert failed(ORIGINAL.replace("add", "plus2"), replaced(("add", "plus"), ("lus(", "lus2("))) == []
    assert failed(ORIGINAL.replace("add", "plus"), replaced(("add", "sum"), ("sub", "sub"))) == [
        "added_lines_present",
        "accounted",
    ]


def test_a_name_replaced_everywhere_is_neither_a_loss_of_lines_nor_of_definitions() -> None:
    original = "".join(f"def get_{number}(x):\n    return get_{number}\n" for number in range(30))
    edit = replaced(("get_", "fetch_"), replace_all=True)
    assert failed(original.replace("get_", "fetch_"), edit, original, "python") == []


def test_a_definition_that_no_substitution_touches_may_not_go() -> None:
    right = ORIGINAL.replace("+= a", "+= b")
    damaged = right.replace(right[right.index("  mul") : right.index("  reset")], "")
    assert "symbols_kept" in failed(damaged, replaced(("+= a", "+= b")))


def test_what_each_of_several_hunks_adds_must_stand() -> None:
    edit = hunks(
        Replacement(("  add(a) {",), ("  add(a) {", "    check(a);")),
        Replacement(("  mul(a) {",), ("  mul(a) {", "    check(a);")),
    )
    once = ORIGINAL.replace("  add(a) {\n", "  add(a) {\n    check(a);\n")
    twice = once.replace("  mul(a) {\n", "  mul(a) {\n    check(a);\n")
    assert failed(twice, edit) == []
    assert failed(once, edit) == ["added_lines_present", "accounted"]


def test_what_a_range_of_lines_takes_away_may_go_and_nothing_else() -> None:
    hint = Hint(line=5, pinned=True, num_unseen=10)
    edit = ParsedEdit("lines", (Replacement((), (), hint),), "")
    lines = ORIGINAL.split("\n")
    assert failed("\n".join(lines[:5] + lines[15:]), edit) == []
    assert "symbols_kept" in failed("\n".join(lines[:5] + lines[-2:]), edit)


def test_a_whole_file_may_rewrite_and_drop_but_not_lose_most_or_its_end() -> None:
    without_mul = ORIGINAL.replace(ORIGINAL[ORIGINAL.index("  mul") : ORIGINAL.index("  reset")], "")
    assert failed(without_mul, whole(without_mul)) == []
    cut = ORIGINAL[: ORIGINAL.index("  mul")]
    assert "truncated_tail" in failed(cut, whole(cut))
    stub = "class Calculator {\n}\n"
    assert "lines_removed" in failed(stub, whole(stub))


def test_an_emptied_file_is_found_by_both_policies() -> None:
    """cline#9555, kilocode#3312: the file was written empty."""
    for original in (ORIGINAL, "x = 1\n"):
        for edit in (whole("\n"), parse(LAZY), replaced(("sub", "minus"))):
            checks = verify(original, "", edit, None)
            assert "truncated_tail" in [check.name for check in checks if not check.ok]
            assert not is_accepted(checks, "lenient")
    assert failed("", hunks(Replacement(("x = 1",), ())), "x = 1\n", None) == []


def test_a_created_file_is_taken_as_it_was_sent() -> None:
    for edit in (whole("def f(:\n"), ParsedEdit("v4a", (Replacement((), ("def f(:",)),), "", action="create")):
        assert failed("def f(:\n", edit, "", "python") == []
        assert failed("def g(:\n", edit, "", "python") == ["added_lines_present", "parse_errors", "accounted"]


def test_a_long_missing_line_is_cut_in_the_detail() -> None:
    line = "x" * 100_000
    checks = verify("a\n", "b\n", hunks(Replacement(("a",), (line,))), None)
    assert max(len(check.detail) for check in checks) < 300


def test_many_blocks_are_verified() -> None:
    original = "".join(f"line {number}\n" for number in range(2_000))
    edit = ParsedEdit("search_replace", tuple(Replacement((f"line {at}",), (f"LINE {at}",)) for at in range(2_000)), "")
    assert failed(original.upper(), edit, original, None) == []


def test_no_check_fails_on_recorded_results_as_substitutions_and_as_whole_files() -> None:
    for row in rows("agent_sessions/edit_cases.jsonl"):
        for edit in (replaced((row["old_text"], row["new_text"])), whole(row["expected"])):
            assert failed(row["expected"], edit, row["original"], find_language(row["path"])) == [], row["id"]


def test_a_diff_may_add_a_line_that_looks_like_a_placeholder() -> None:
    """Documentation of edit formats is edited too; a model's blocks stay refused (cline#577)."""
    before, after = "# Docs\n\ntext\n", "# Docs\n\n// ... existing code ...\ntext\n"
    edit = parse(render_unified_diff(before, after, "docs.md"), "udiff")
    assert is_accepted(verify(before, after, edit, "markdown"))
    leaking = after.replace("text", "# ... rest of the file ...\ntext")
    assert not is_accepted(verify(before, leaking, edit, "markdown"))


@pytest.mark.parametrize("after", ["    this.result += ((a;\n", "    this.result -= a ** 2;\n"])
@pytest.mark.parametrize("made", ["as the edit says", "with another change"])
def test_a_large_file_is_not_parsed_for_an_edit_to_the_letter_and_the_checks_decide_the_same(
    monkeypatch: pytest.MonkeyPatch, after: str, made: str
) -> None:
    block = f"<<<<<<< SEARCH\n    this.result -= a;\n=======\n{after}>>>>>>> REPLACE\n"
    edit = parse(block, "search_replace")
    merged = ORIGINAL.replace("    this.result -= a;\n", after)
    if made == "with another change":
        merged = merged.replace("    this.result *= a;\n", "")
    slow = verify(ORIGINAL, merged, edit, "javascript")
    monkeypatch.setattr("editor.verify.MAX_PARSED", 10)
    fast = verify(ORIGINAL, merged, edit, "javascript")
    assert [(check.name, check.ok) for check in fast] == [(check.name, check.ok) for check in slow]
    is_parsed = "not applicable" not in {check.name: check.detail for check in fast}["parse_errors"]
    assert is_parsed == (made == "with another change")


BODY = ["    a()", "    b()", "    c()"]
WITH_BODY = "\n".join(["def f():", *BODY, "    return 1", ""])
STAND_INS = (
    "# existing logic",
    "# (same as before)",
    "# unchanged",
    "# as above",
    "# ... and so on",
    "# keep the rest as is",
    "# previous code",
)


def hunk(*added: str) -> str:
    return "\n".join(
        [" def f():", *(f"-{line}" for line in BODY), *(f"+{line}" for line in added), "     return 1", ""]
    )


def edits(*added: str) -> dict[FormatName, str]:
    """Return one change, the body of `f` for other lines, in every explicit format."""
    old, new = "\n".join(BODY), "\n".join(added)
    return {
        "udiff": f"@@ -1,5 +1,{2 + len(added)} @@\n{hunk(*added)}",
        "v4a": f"*** Begin Patch\n*** Update File: x.py\n@@\n{hunk(*added)}*** End Patch\n",
        "search_replace": f"<<<<<<< SEARCH\n{old}\n=======\n{new}\n>>>>>>> REPLACE\n",
        "replace": json.dumps({"old_string": old, "new_string": new}),
        "lines": json.dumps({"start_line": 2, "end_line": 4, "old": old, "new": new}),
        "whole": "\n".join(["def f():", *added, "    return 1", ""]),
    }


@pytest.mark.parametrize("format_name", edits(""))
@pytest.mark.parametrize("comment", STAND_INS)
def test_a_comment_in_place_of_lines_is_refused(format_name: FormatName, comment: str) -> None:
    outcome = merge(WITH_BODY, parse(edits("    " + comment, "    c(1)")[format_name], format_name), "python")
    assert isinstance(outcome, Unresolved), outcome
    assert outcome.code == "open_intent"
    assert comment in outcome.reason
    assert "Write out all lines" in outcome.suggestion or "lazy" in outcome.suggestion


@pytest.mark.parametrize("format_name", edits(""))
@pytest.mark.parametrize(
    "added",
    [
        (*BODY, "    # existing callers rely on this: they pass no arguments, and want the number one"),
        ("    # existing logic", *BODY),
        (
            "    # call the others in the existing order that the tests of the module rely on",
            "    a(1)",
            "    b(1)",
            "    c(1)",
        ),
        ("    # Calls a, b, and c.", "    # It does the same as before.", "    a(1)"),
        ("    # call once", "    a(1)"),
        ("    # the code of a", "    a(1)", "    b(1)", "    c(1)"),
    ],
)
def test_a_comment_beside_lines_that_stay_is_a_comment(format_name: FormatName, added: tuple[str, ...]) -> None:
    outcome = merge(WITH_BODY, parse(edits(*added)[format_name], format_name), "python")
    assert isinstance(outcome, Merged), outcome
    assert outcome.text == "\n".join(["def f():", *added, "    return 1", ""])


def test_a_whole_file_in_which_a_comment_stands_for_functions_is_refused() -> None:
    functions = [f"def f{at}():\n    return {at}\n" for at in range(6)]
    sent = "\n\n".join([functions[0], "# the others as above\n", functions[5]])
    outcome = merge("\n\n".join(functions), parse(sent, "whole"), "python")
    assert isinstance(outcome, Unresolved)
    assert "# the others as above" in outcome.reason


def test_a_comment_that_the_file_has_already_is_no_stand_in() -> None:
    edit = parse(json.dumps({"old_string": "a()\nb()", "new_string": "# existing logic\na(b)"}))
    assert isinstance(merge("# existing logic\nx()\na()\nb()\n", edit), Merged)
