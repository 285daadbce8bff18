"""`python -m benchmarks.trust`: corruptions are planted soundly and found, nobody guesses, the keys are there."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import edit_formats as rendering
from benchmarks.cases import DEFAULT_CASES, Case
from benchmarks.scoring import compute_interval, list_solid_lines
from benchmarks.trust import adversary
from benchmarks.trust.ambiguous import DOORS, make_ambiguous_edits, send_all
from benchmarks.trust.corruptions import CORRUPTIONS, RightText, plant
from benchmarks.trust.planted import RIGHT, Legal, measure
from benchmarks.trust.report import count_rows, make_blocks
from benchmarks.trust.right_results import load_right_results
from benchmarks.trust.stale import MUTATIONS, Stale, make_stale_cases, merge_both, send_again, send_stale
from editor.formats import parse

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = 24

_PYTHON = '''"""Limits of requests, by client."""

import logging
import time

LIMIT = 100
WINDOW_SECONDS = 60


class Limiter:
    """Counts the requests of each client in a window."""

    def __init__(self, limit=LIMIT, window=WINDOW_SECONDS):
        self.limit = limit
        self.window = window
        self.seen = {}

    def allow(self, client):
        """Whether one more request of a client is allowed now."""
        now = time.monotonic()
        recent = [t for t in self.seen.get(client, []) if now - t < self.window]
        self.seen[client] = recent
        if len(recent) >= self.limit:
            return False
        recent.append(now)
        return True

    def reset(self, client):
        """Start anew for a client."""
        self.seen.pop(client, None)
        logging.info("reset %s", client)

    def size(self):
        """How many clients are known."""
        return len(self.seen)
'''
_PYTHON_RIGHT = _PYTHON.replace(
    '''        """Start anew for a client."""
        self.seen.pop(client, None)
''',
    '''        """Start anew for a client; whether it was known."""
        known = self.seen.pop(client, None)
        if known is None:
            raise KeyError(client)
''',
)
_PYTHON_SNIPPET = '''class Limiter:
    # ... existing code ...

    def reset(self, client):
        """Start anew for a client; whether it was known."""
        known = self.seen.pop(client, None)
        if known is None:
            raise KeyError(client)
        logging.info("reset %s", client)

    # ... existing code ...
'''
_TYPESCRIPT = """import { Store } from './store'
import { log } from './log'

export interface Item {
    name: string
    count: number
}

export function total(items: Item[]): number {
    let sum = 0
    for (const item of items) {
        sum += item.count
    }
    log('total', sum)
    return sum
}

export function names(items: Item[]): string[] {
    const found = []
    for (const item of items) {
        found.push(item.name)
    }
    log('names', found.length)
    return found
}

export async function save(store: Store, items: Item[]): Promise<void> {
    if (items.length === 0) {
        return
    }
    await store.put('items', JSON.stringify(items))
}
"""
_TYPESCRIPT_RIGHT = _TYPESCRIPT.replace(
    """        sum += item.count
    }
    log('total', sum)
""",
    """        if (item.count > 0) {
            sum += item.count
        }
    }
    const rounded = Math.round(sum)
    log('total', rounded)
""",
)
_TYPESCRIPT_SNIPPET = """// ... existing code ...

export function total(items: Item[]): number {
    let sum = 0
    for (const item of items) {
        if (item.count > 0) {
            sum += item.count
        }
    }
    const rounded = Math.round(sum)
    log('total', rounded)
    return sum
}

// ... existing code ...
"""


def _case(name: str, format_name: str, path: str, original: str, edit: str | None, expected: str) -> Case:
    assert edit is not None
    return Case(name, "inline", format_name, path, original, edit, expected, style="inline")  # type: ignore[arg-type]


PYTHON = ("limits.py", _PYTHON, _PYTHON_RIGHT)
TYPESCRIPT = ("items.ts", _TYPESCRIPT, _TYPESCRIPT_RIGHT)
INLINE = [
    _case("py-lazy", "lazy", *PYTHON[:2], _PYTHON_SNIPPET, _PYTHON_RIGHT),
    _case("ts-lazy", "lazy", *TYPESCRIPT[:2], _TYPESCRIPT_SNIPPET, _TYPESCRIPT_RIGHT),
    *(
        _case(f"{path}-{name}", name, path, before, edit, after)
        for path, before, after in (PYTHON, TYPESCRIPT)
        for name, edit in (
            ("search_replace", rendering.render_search_replace(before, after)),
            ("replace", rendering.render_replace(before, after)),
            ("udiff", rendering.render_udiff(before, after, path)),
            ("v4a", rendering.render_v4a(before, after, path)),
        )
    ),
]


@pytest.mark.parametrize("case", INLINE, ids=lambda case: case.id)
def test_a_right_result_passes_and_every_corruption_of_it_is_detected(case: Case) -> None:
    rows = measure(case, CORRUPTIONS, seed=0)
    (right,) = [row for row in rows if row.name == RIGHT]
    assert right.is_accepted, right.failed
    missed = [f"{row.name} line {row.line}: {row.what}" for row in rows if row.name != RIGHT and not row.is_detected]
    assert missed == []
    assert not any(row.certain for row in rows)


def test_every_corruption_has_a_place_in_the_fixed_cases() -> None:
    planted = {name for case in INLINE for name in CORRUPTIONS if plant(RightText(case), name, 0) is not None}
    assert planted == set(CORRUPTIONS)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_corruption_changes_more_than_blank_lines_and_is_the_same_every_time(name: str) -> None:
    for case in INLINE:
        right = RightText(case)
        for seed in range(20):
            planted = plant(right, name, seed)
            if planted is None:
                continue
            assert plant(RightText(case), name, seed) == planted
            assert planted.text != right.source.text
            if name != "out_ending":
                assert list_solid_lines(planted.text) != list_solid_lines(case.expected)


def test_a_text_that_leaves_the_place_open_is_a_legal_reading_and_one_beside_a_shown_line_is_not() -> None:
    original = "import a\nimport b\n\n\ndef f():\n    x = 1\n    return x\n\n\ndef g():\n    return 2\n"
    new = "\n\ndef h():\n    return 3\n"
    expected = original.replace("\n\ndef g", f"{new}\n\ndef g")
    snippet = "# ... existing code ...\n\ndef h():\n    return 3\n\n# ... existing code ...\n"
    case = _case("place", "lazy", "x.py", original, snippet, expected)
    legal = Legal(RightText(case), parse(snippet))
    assert legal.reason(original + new)
    assert not legal.reason(expected.replace("import b\n", ""))
    shown = "def f():\n    x = 1\n    y = 2\n    return x\n\n# ... existing code ...\n"
    right = original.replace("    x = 1\n", "    x = 1\n    y = 2\n")
    legal = Legal(RightText(replace(case, edit=shown, expected=right)), parse(shown))
    assert not legal.reason(original.replace("    return x\n", "    return x\n    y = 2\n"))


def test_intervals_are_wilsons() -> None:
    assert compute_interval(0, 0) is None
    assert compute_interval(0, 10) == (0.0, 0.2775)
    assert compute_interval(10, 10) == (0.7225, 1.0)
    assert compute_interval(50, 100) == (0.4038, 0.5962)


def test_blocks_add_up() -> None:
    rows = [row for case in INLINE[:3] for row in measure(case, ("out_token", "new_dropped"), seed=1)]
    found = make_blocks(rows)
    whole = found[0]
    for kind in ("class", "format", "source", "style"):
        assert sum(block["planted"] for block in found if block["kind"] == kind) == whole["planted"]
    assert whole["correct"] == 3
    assert count_rows([], set())["detected_share"] is None


def test_edits_without_one_place_are_refused_at_every_door_and_no_model_is_asked() -> None:
    edits = make_ambiguous_edits([case for case in INLINE if case.format != "lazy"] * 6, 12, seed=0)
    assert {case.format for case in edits} == {"search_replace", "replace", "udiff", "v4a"}
    assert {case.style for case in edits} == {"cut", "doubled", "missing"}
    for case in edits:
        num_places = case.original.count("\n".join(parse(case.edit).old_lines).rstrip("\n"))
        assert num_places == 0 if case.style == "missing" else num_places > 1
    sent = list(send_all(edits))
    assert len(sent) == len(edits) * len(DOORS)
    assert [one for one in sent if one.crashed] == []
    assert [one for one in sent if one.guessed or one.model_calls] == []


def test_two_changes_of_one_text_are_both_made_unless_they_touch() -> None:
    base = "a\nb\nc\nd\ne\n"
    assert merge_both(base, base.replace("a", "A"), base.replace("e", "E")) == "A\nb\nc\nd\nE\n"
    assert merge_both(base, base.replace("b", "B"), base.replace("c", "C")) is None


def test_a_merge_into_a_changed_file_is_compared_with_both_changes() -> None:
    case = next(case for case in INLINE if case.id == "limits.py-search_replace")
    changed = _PYTHON.replace("LIMIT = 100", "LIMIT = 10")
    right = _PYTHON_RIGHT.replace("LIMIT = 100", "LIMIT = 10")
    stale = Stale("far_inserted", replace(case, original=changed), (right,))
    assert send_stale(stale).outcome == "right"
    assert send_stale(replace(stale, right=(_PYTHON_RIGHT,))).outcome == "wrong"
    assert send_stale(replace(stale, case=replace(case, original="x = 1\n"))).outcome == "refused"


def test_changed_files_are_merged_right_or_refused_and_edits_sent_twice_change_nothing() -> None:
    found = [stale for seed in range(10) for stale in make_stale_cases(INLINE, ROOT / "tests" / "benchmarks", 0, seed)]
    assert {stale.kind for stale in found} == set(MUTATIONS)
    assert [sent for sent in map(send_stale, found) if sent.outcome in ("wrong", "crashed")] == []
    again = [sent for case in INLINE if (sent := send_again(case)) is not None]
    assert len(again) >= sum(case.format != "lazy" for case in INLINE)
    assert {sent.outcome for sent in again} <= {"unchanged", "refused"}


def test_verdicts_are_those_of_the_cases_own_program(tmp_path: Path) -> None:
    block = rendering.render_blocks([("b = 1\n", "b = 2\n")])
    case = {"path": "x.py", "original": "a = 1\nb = 1\n", "edit": block, "format": "auto"}
    expected = ("a = 1\nb = 2\n", "a = 1\n\nb = 2\n", "a = 1\nb = 3\n", "refuse", "noop")
    cases = [{**case, "name": str(number), "expected": text} for number, text in enumerate(expected)]
    (tmp_path / "cases.jsonl").write_text("".join(json.dumps(one) + "\n" for one in cases), "utf-8")
    found = [(one.least, one.verdict) for one in adversary.judge_cases(tmp_path, None, 0)]
    verdicts = ["right", "blanks-differ", "WRONG", "WRONG", "WRONG"]
    assert found == [(least, verdict) for least in ("certain", "model") for verdict in verdicts]


@pytest.fixture(scope="module")
def recorded() -> Path:
    if not DEFAULT_CASES.is_dir():
        pytest.skip(f"{DEFAULT_CASES} is not there: the recorded edits of the project's machines")
    return DEFAULT_CASES


def test_a_sample_of_recorded_edits_meets_the_goals_that_are_zero(recorded: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    parts = "planted,ambiguous,stale,resent,adversary"
    command = [sys.executable, "-m", "benchmarks.trust", "--limit", str(SAMPLE), "--only", parts, "--workers", "1"]
    command += ["--cases", str(recorded), "--json", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text("utf-8"))
    summary = found["summary"]
    goals = ("guessed", "model_calls", "stale_wrong", "resent_changed", "adversary_wrong", "adversary_certain_wrong")
    assert {key: summary[key] for key in goals} == dict.fromkeys(goals, 0), done.stdout
    assert summary["planted"] > 150
    assert summary["correct"] == len(load_right_results(recorded, SAMPLE, 0))
    assert summary["detected"] >= 0.9 * summary["planted"]
    assert not any(row.get("certain") for row in found["rows"] if row["kind"] == "case")
    keys = {"legal_other", "correct_refused", "repaired_exact", "ambiguous", "stale", "resent", "resent_refused"}
    assert keys | {"adversary_right", "adversary_certain_right"} <= summary.keys()
    assert {"place", "class", "format", "source", "style"} <= {row["kind"] for row in found["rows"]}
