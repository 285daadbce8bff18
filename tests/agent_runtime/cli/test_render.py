"""What a person sees: no line too wide for the terminal, and nothing said by colour alone."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from agent_runtime.cli.render import print_refusal, print_remarks
from agent_runtime.errors import EditRefused, ModelUnavailable
from agent_runtime.types import ApplyResult, FileResult, GivenScope, Reading, Reason, Usage
from editor.types import Check

LONG = "value = compute(" + ", ".join(f"argument_{number}" for number in range(20)) + ")"
DIFF = f"@@ -1,3 +1,3 @@\n context\n-{LONG}\n+{LONG.upper()}"
REASON = Reason(
    "not_found",
    "The SEARCH lines do not stand in the file, and this sentence goes on for longer than a line of a terminal is.",
    12,
    f"lines 3-4 are nearest (87 % alike):\n- {LONG}\n+ {LONG.upper()}",
    "Copy the SEARCH lines from the file as it is now. Send the other blocks of this edit as they are, all of them.",
    (Reading(0.998, "SEARCH taken at lines 3-4", DIFF), Reading(0.5, "at 9", "\n".join([DIFF] * 4))),
    "src/settings.py",
)


def shown(fault: EditRefused | ModelUnavailable, width: int = 80, *, terminal: bool = True) -> str:
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=terminal, color_system=None, highlight=False)
    print_refusal(fault, console)
    return file.getvalue()


@pytest.mark.parametrize("width", [60, 80, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    lines = shown(EditRefused(REASON.reason, reasons=(REASON,)), width).splitlines()
    assert max(map(len, lines)) <= width
    assert all(line == line.rstrip() for line in lines)


def test_code_is_whole_where_the_output_is_no_terminal() -> None:
    text = shown(EditRefused(REASON.reason, reasons=(REASON,)), terminal=False)
    assert f"  + {LONG.upper()}\n" in text


def test_everything_that_a_reason_holds_is_shown_in_order() -> None:
    text = shown(EditRefused(REASON.reason, reasons=(REASON,)))
    parts = [
        "hunk: src/settings.py: The SEARCH",
        "Lines 3-4 are nearest",
        "one of these, the likeliest of 12",
        "1. SEARCH taken at lines 3-4 (score 0.99)",
        "2. at 9 (score 0.50)",
        "(8 more lines)",
        "Copy the SEARCH lines",
    ]
    places = [text.index(part) for part in parts]
    assert places == sorted(places)


def test_every_refused_file_is_named_and_the_sixth_is_counted() -> None:
    reasons = tuple(Reason("file_missing", f"'{n}.py' is not there", path=f"{n}.py") for n in range(7))
    text = shown(EditRefused("7 files cannot be edited", reasons=reasons))
    assert "'4.py' is not there" in text
    assert "'5.py'" not in text
    assert "2 more files" in text


def test_a_missing_model_comes_with_the_reason_why_it_was_asked_for_and_a_command_to_copy() -> None:
    fault = ModelUnavailable("x" * 70 + ": run `hunk models pull qwen2.5-coder-1.5b`")
    fault.reasons = (REASON,)
    text = shown(fault)
    assert "hunk models pull qwen2.5-coder-1.5b" in text
    assert "src/settings.py: The SEARCH lines" in text


def test_the_result_of_several_files_has_a_line_for_each() -> None:
    failed = Check("parse_errors", False, "1 syntax error")
    made = FileResult("a", "merged", "x\n", "--- a/a\n", "deterministic", "exact", 1, "certain", (failed,), "", "")
    moved = FileResult("b", "merged", "", "", "model", "model", 1, "model", (), "", "", action="move", move_to="c")
    file = io.StringIO()
    print_remarks(ApplyResult((made, moved), Usage(), {"total_ms": 1.0}), Console(file=file, width=80), "written")
    lines = file.getvalue().splitlines()
    assert "a: merged by rule (exact), certain; written" in lines
    assert "  parse_errors: 1 syntax error" in lines
    assert "b to c: merged by the model, checked; written" in lines


@pytest.mark.parametrize(
    ("scope", "line"),
    [
        (GivenScope("file", ((1, 9),), 9, 9), "  the model was given the whole file, 9 lines"),
        (
            GivenScope("regions", ((1, 4), (700, 731)), 36, 10_000),
            "  the model was given lines 1-4, lines 700-731 of 10000, and an outline of the rest",
        ),
    ],
)
def test_what_the_model_was_given_and_what_it_did_with_it_are_shown(scope: GivenScope, line: str) -> None:
    made = FileResult("a", "merged", "x\n", "", "model", "model", 2, "scored", (), "", "", scope=scope)
    file = io.StringIO()
    print_remarks(ApplyResult((made,), Usage(), {"total_ms": 1.0}), Console(file=file, width=80), "written")
    headline, given, cost = file.getvalue().splitlines()
    assert headline == "merged by the model, chosen and checked; written"
    assert given == line
    assert "0 forward passes" in cost


def test_where_the_prompts_kv_came_from_is_shown() -> None:
    made = FileResult("a", "merged", "x\n", "", "model", "model", 1, "model", (), "", "")

    def cost(usage: Usage) -> str:
        file = io.StringIO()
        print_remarks(ApplyResult((made,), usage, {"total_ms": 1.0}), Console(file=file), "written")
        return file.getvalue().splitlines()[-1]

    assert "9 prompt tokens (4 cached), " in cost(Usage(prompt=9, cached=4, recomputed=5, recomputed_by={"changed": 5}))
    approximate = Usage(
        prompt=9, cached=2, reused_approximate=4, recomputed=3, recomputed_by={"changed": 0, "asked": 2, "tail": 1}
    )
    assert "9 prompt tokens (2 cached, 4 reused approximately, 3 run: 2 asked, 1 tail), " in cost(approximate)
