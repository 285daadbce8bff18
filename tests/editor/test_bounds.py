"""Bounds of work, cancellation, and the cache of results.

No input takes time by the square of its length, none crashes, and what is too much is refused by name. A merge can be
stopped at any check. A cached result is found only by the owner for whom it was computed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_runtime.apply.pipeline import Applier
from agent_runtime.errors import HunkError, ModelUnavailable
from agent_runtime.types import ApplyRequest, PatchRequest
from benchmarks.slow_inputs import SlowInput, make_slow_inputs
from editor import codec
from editor.attribution import attribute_changes, block_rules
from editor.attribution.lazy import PathSearch
from editor.attribution.replacements import MAX_LOOKS, ReplacementSearch
from editor.attribution.texts import SearchTexts
from editor.checks import _find_shown_seams, _TextSet
from editor.diff import MAX_MATRIX_BITS, line_opcodes
from editor.errors import EditorError, EditSyntaxError
from editor.execution import cache_results, check_stopped, clear_caches, is_stopped, stop_when, use_cache_of
from editor.formats import parse
from editor.formats.markup import find_stray
from editor.grammars import find_language
from editor.hunks.slots import Scopes
from editor.match import ladder
from editor.match.ladder import KeyedLines, LineIndex, find_runs
from editor.merge import merge
from editor.snippets import strip_strings
from editor.syntax import count_errors, survey
from editor.types import FormatName, Hint, Merged, MergeOutcome, ParsedEdit, Replacement, Sketch, Unresolved
from editor.verify import verify

INPUTS = list(make_slow_inputs(0.02))
FEW = st.lists(st.sampled_from("ab"), max_size=12)


def outcome(original: str, edit: str, name: FormatName, path: str = "x.py") -> MergeOutcome:
    return merge(original, parse(edit, name), find_language(path))


@pytest.mark.parametrize("slow", INPUTS, ids=[each.name for each in INPUTS])
def test_every_slow_input_is_merged_or_refused(slow: SlowInput) -> None:
    try:
        source = codec.decode(slow.original)
        edit = parse(slow.edit, slow.format)
        made = merge(source.text, edit, find_language(slow.path))
        if isinstance(made, Merged):
            assert verify(source.text, made.text, edit, find_language(slow.path))
            codec.encode(made.text, source, by_model=False, ops=made.ops)
    except EditorError:
        return
    assert not isinstance(made, Unresolved) or (made.reason and len(made.reason) < 2_000)


def test_the_slow_inputs_are_the_same_every_time_and_have_a_name_each() -> None:
    assert len({each.name for each in INPUTS}) == len(INPUTS)
    assert list(make_slow_inputs(0.02)) == INPUTS


@given(FEW, st.lists(st.sampled_from("ab"), min_size=1, max_size=5))
def test_places_in_periodic_texts_are_those_that_comparing_finds(keys: list[str], wanted: list[str]) -> None:
    places = [at for at in range(len(keys) - len(wanted) + 1) if keys[at : at + len(wanted)] == wanted]
    assert list(find_runs(keys, wanted)) == places
    keyed = KeyedLines(keys)
    assert [list(keyed.find_starts(wanted)), list(keyed.find_starts(wanted))] == [places, places]


@given(st.text("\"'`\\/a{", max_size=12))
def test_strings_are_taken_out_as_a_pattern_would(line: str) -> None:
    strings = r""""(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|`(?:\\.|[^`\\])*`"""
    assert strip_strings(line) == re.sub(strings, "", line)
    assert strip_strings(line, comments=True) == re.sub("//.*|" + strings, "", line)


@given(st.lists(st.text("ab", min_size=1, max_size=3), min_size=25, max_size=40), st.text("abc", max_size=8))
def test_one_of_many_texts_stands_in_a_line(texts: list[str], line: str) -> None:
    texts = [text + "c" for text in texts] + [f"x{at}" for at in range(25)]
    assert _TextSet(texts).is_in(line) == any(text in line for text in texts)


@given(st.lists(st.sampled_from(["a:", " a:", " b:", "  c", "d"]), min_size=1, max_size=9), st.data())
def test_scopes_hold_what_lies_inside_of_them(lines: list[str], data: st.DataObject) -> None:
    scopes = tuple(data.draw(st.lists(st.sampled_from(["a:", "b:"]), max_size=2)))
    start = data.draw(st.integers(0, len(lines) - 1))
    end = data.draw(st.integers(start + 1, len(lines)))
    known = Scopes(LineIndex(lines))
    assert known.contain(scopes, start, end) == _held(known, lines, scopes, start, end)


def _held(known: Scopes, lines: Sequence[str], scopes: Sequence[str], start: int, end: int) -> bool:
    outer = [(-1, len(lines))]
    for scope in scopes:
        stands = [at for at, line in enumerate(lines) if line.strip() == scope]
        outer = [(at, min(known._get_end(at), limit)) for above, limit in outer for at in stands if above < at < limit]
    return any(at < end and start < limit for at, limit in outer)


DIGITS = "1" * 5_000


@pytest.mark.parametrize(
    ("name", "edit"),
    [
        ("udiff", f"@@ -{DIGITS} +1 @@\n-a\n+b\n"),
        ("udiff", f"@@ -1,{DIGITS} +1,{DIGITS} @@\n-a\n+b\n"),
        ("v4a", f"*** Begin Patch\n*** Update File: x\n@@ -{DIGITS} +1\n-a\n+b\n*** End Patch\n"),
        ("search_replace", f"<<<<<<< SEARCH\n:start_line:{DIGITS}\n-------\na\n=======\nb\n>>>>>>> REPLACE\n"),
        ("search_replace", f"<<<<<<< SEARCH\n{DIGITS} | a\n=======\n{DIGITS} | b\n>>>>>>> REPLACE\n"),
        ("lines", f"edit {DIGITS}:{DIGITS}\nb\nend_of_edit\n"),
        ("lines", f'{{"start_line": {DIGITS}, "end_line": {DIGITS}, "old": "a", "new": "b"}}'),
        ("lines", f'{{"insert_line": {"9" * 4_300}, "new": "b"}}'),
        ("replace", "[" * 100_000),
        ("replace", "[" * 950 + '{"old_string": "a", "new_string": "b"}' + "]" * 950),
        ("auto", '{"edits": [' * 50_000),
    ],
)
def test_numbers_without_end_and_deep_nesting_are_no_crash(name: FormatName, edit: str) -> None:
    with suppress(EditSyntaxError):
        assert outcome("a\n" * 3, edit, name)


def nested(levels: int) -> str:
    return "".join("  " * at + f"if x{at}:\n" for at in range(levels)) + "  " * levels + "pass\n"


@pytest.mark.parametrize(
    ("original", "edit"),
    [
        (nested(500) * 2, "# ... existing code ...\nx = 1\n# ... existing code ...\n"),
        ("a = 1\nb = 2\n", f"# ... existing code ...\n{nested(400)}# ... existing code ...\n"),
        (json.dumps({"a": 1}), "// ...\n" + "".join(" " * at + '{"a":\n' for at in range(900)) + "// ...\n"),
        ("\n".join(f"value_{at % 900} = {at}" for at in range(9_000)),) * 2,
    ],
)
def test_deep_and_long_snippets_are_no_crash(original: str, edit: str) -> None:
    assert outcome(original, edit, "lazy")


def test_a_block_with_thousands_of_telling_lines_is_no_crash() -> None:
    lines = [f"value_{at} = compute({at % 7}, other)" for at in range(3_000)]
    part = "\n".join([*lines[5:2_900], "} )"])
    assert outcome("\n".join([*lines, *lines]) + "\n", f"# ...\n{part}\n# ...\n", "lazy")


@pytest.mark.parametrize("line", ["", "}", "    return None"])
@pytest.mark.parametrize("context", [1, 20])
def test_verify_raises_nothing_for_hunks_whose_lines_stand_everywhere(line: str, context: int) -> None:
    original = (line + "\n") * 15_000
    kept = f" {line}\n" * context
    size = context + 1
    hunks = [f"@@ -{at},{size} +{at},{size} @@\n{kept}-{line}\n+x\n" for at in range(2, 600 * size, size)]
    edit = parse("--- a/x\n+++ b/x\n" + "".join(hunks), "udiff")
    made = merge(original, edit)
    assert isinstance(made, Merged)
    assert all(check.ok for check in verify(original, made.text, edit, None) if check.name == "accounted")


def test_accounting_past_a_bound_names_it_and_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder, "MAX_COMPARED", 10)
    edit = parse("<<<<<<< SEARCH\na\n=======\nb\n>>>>>>> REPLACE\n", "search_replace")
    reading = attribute_changes("a\n" * 20, "b\n" + "a\n" * 19, edit, None)
    assert (reading.bound, bool(reading.faults)) == ("accounting_places", True)


@given(st.lists(st.sampled_from("abc"), min_size=25, max_size=40), st.data())
def test_changes_of_many_places_are_those_that_asking_each_finds(lines: list[str], data: st.DataObject) -> None:
    olds = data.draw(st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=2), min_size=2, max_size=9))
    text = "".join(line + "\n" for line in lines)
    changes = tuple(Replacement(tuple(old), ("x",)) for old in olds)
    search = ReplacementSearch(text, text, ParsedEdit("search_replace", changes, ""), changes, by_model=False)
    first = data.draw(st.integers(0, len(lines)))
    last = data.draw(st.integers(first, len(lines)))
    asked = [number for number in search._common if list(search._found[number].iter_starts(first, last))]
    near = search._list_common(first, last)
    assert near == sorted(near)
    assert [number for number in near if list(search._found[number].iter_starts(first, last))] == asked


def test_many_blocks_are_asked_only_where_they_may_begin() -> None:
    cases = [f"case {at % 50}:" for at in range(3_000)]
    changes = tuple(Replacement((line,), ("other",), hint=Hint(line=at)) for at, line in enumerate(cases[:1_000]))
    original = "".join(line + "\n" for line in cases)
    result = "other\n" * 1_000 + "".join(line + "\n" for line in cases[1_000:])
    search = ReplacementSearch(original, result, ParsedEdit("search_replace", changes, ""), changes, by_model=False)
    assert search.can_reach_result()
    # Without an index by their first lines each of a thousand steps asks each of the thousand changes.
    assert MAX_LOOKS - search.looks_left < 50 * len(changes)


def test_rows_of_dots_end_by_the_bound_of_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_rules, "MAX_WORK", 5_000)
    text = "x = {\n" + "    ...\n" * 900 + "}\n"
    sketch = parse(text, "lazy").changes
    assert isinstance(sketch, Sketch)
    search = PathSearch(SearchTexts("x = {\n}\n", text, sketch, "javascript", ()))
    assert search.find_attribution(explain=False).bound == "accounting_states"
    assert search.work.done < 5_000 + 2 * 900


@given(st.lists(st.sampled_from(["a", "b", "}", ""]), max_size=12), st.lists(st.sampled_from(["a", "b", "}", ""])))
def test_seams_are_those_that_looking_through_finds(new: list[str], block: list[str]) -> None:
    literal = [line for line in block if line]
    solid = [at for at, line in enumerate(new) if line]
    found = [new[at] for at in solid]
    seams: set[int] = set()
    reached = 0
    starts = list(find_runs(found, literal)) if literal else []
    for start in starts:
        for place in range(max(start, reached), start + len(literal) - 1):
            seams.update(range(solid[place] + 1, solid[place + 1] + 1))
        reached = start + len(literal) - 1
    if not starts:
        return
    assert _find_shown_seams(new, Sketch((tuple(block),), opens_elided=True, closes_elided=True)) == seams


@given(st.text("a\n", max_size=9))
def test_lines_without_carriage_returns_are_split_as_a_pattern_would(text: str) -> None:
    pieces = re.split(r"(\r\n|\n)", text)
    lines, endings = pieces[0::2], [*pieces[1::2], ""]
    if not lines[-1]:
        lines.pop()
        endings.pop()
    assert codec._split(text) == (lines, tuple(endings))
    assert codec.decode(text.encode()).text == text


def test_a_row_of_blanks_is_looked_through_once_for_markers() -> None:
    # By the square this row would take an hour.
    assert find_stray([" " * 1_000_000 + "x"], [0]) is None
    assert find_stray(['  {   "old_string": "a",'], [0]) == 0
    assert find_stray(['> "new_string" : "a"'], [0]) == 0
    assert find_stray(["> >>>>>>> REPLACE"], [0]) == 0


MANY = 3_000


@pytest.mark.parametrize(
    ("original", "edit", "name", "bound"),
    [
        (
            "x" * 1_000_000,
            json.dumps([{"old_string": "x", "new_string": f"y{at}"} for at in range(900)]),
            "replace",
            "900 replacements",
        ),
        (
            "ab" * 100_000,
            json.dumps({"old_string": "ab", "new_string": "ab" * 100, "replace_all": True}),
            "replace",
            "holds 100 times",
        ),
        ("a\nb\n" * MANY, "--- a/x\n+++ b/x\n" + "@@ @@\n a\n-b\n" * MANY, "udiff", "places"),
        (
            "step = 0\n" + "x\n" * 20_000,
            "".join(f"<<<<<<< SEARCH\nstep = {at}\n=======\nstep = {at + 1}\n>>>>>>> REPLACE\n" for at in range(MANY)),
            "search_replace",
            "3000 blocks",
        ),
    ],
)
def test_what_is_past_a_bound_is_refused_with_its_name(original: str, edit: str, name: FormatName, bound: str) -> None:
    made = outcome(original, edit, name)
    assert isinstance(made, Unresolved)
    assert (made.code, bool(made.suggestion)) == ("too_much_work", True)
    assert bound in made.reason


def test_texts_too_large_to_align_are_cut_no_deeper_than_is_useful() -> None:
    steps = [[line for at in range(3_000, 0, -1) for line in (f"u{at}", f"u{at + 1}", x)] for x in "xy"]
    a, b = ["a"] * 25_000 + steps[0], ["b"] * 25_000 + steps[1]
    assert len(a) * len(b) > MAX_MATRIX_BITS
    ops = line_opcodes(a, b)
    assert all(a[op.a_start : op.a_end] == b[op.b_start : op.b_end] for op in ops if op.equal)
    assert (ops[-1].a_end, ops[-1].b_end) == (len(a), len(b))


def test_lines_at_the_same_place_are_paired_where_nothing_else_tells() -> None:
    a = [f"{at % 7}" for at in range(30_000)]
    b = [line + "!" * (at % 1_000 == 0) for at, line in enumerate(a)]
    assert sum(op.equal for op in line_opcodes(a, b)) == 30


def test_rows_of_quotes_are_not_parsed() -> None:
    assert survey('"' * 20_000, "javascript") is None
    assert survey('x = "' + "a" * 20_000 + '"', "javascript") is not None


PYTHON = "".join(f"def f{n}(x):\n    y = x + {n}\n    return y\n\n\n" for n in range(60))
HUNK = "@@ -11,3 +11,3 @@\n def f2(x):\n-    y = x + 2\n+    y = x - 2\n     return y\n"
EDITS = {
    "search": "<<<<<<< SEARCH\n    y = x + 2\n=======\n    y = x - 2\n>>>>>>> REPLACE\n",
    "search that misses": "<<<<<<< SEARCH\n    y = q + 2\n=======\n    y = x - 2\n>>>>>>> REPLACE\n",
    "pairs": json.dumps([{"old_string": f"x + {n}\n", "new_string": f"x - {n}\n"} for n in range(5)]),
    "lines": json.dumps([{"start_line": 2, "end_line": 2, "old": "    y = x + 0", "new": "    y = 0"}]),
    "udiff": f"--- a.py\n+++ a.py\n{HUNK}",
    "v4a": "*** Begin Patch\n*** Update File: a.py\n@@ def f2(x):\n-    y = x + 2\n+    y = x - 2\n*** End Patch\n",
    "lazy": "# ... existing code ...\n\n\ndef f2(x):\n    y = x - 2\n    return y\n\n\n# ... existing code ...\n",
    "whole": PYTHON.replace("x + 7", "x - 7"),
}


class StoppedError(Exception):
    """What the work is to end with."""


class Stopping:
    """Lets work go on for so many looks."""

    def __init__(self, after: int) -> None:
        self.left = after
        self.num_looks = 0

    def __call__(self) -> Exception | None:
        self.num_looks += 1
        self.left -= 1
        return StoppedError() if self.left < 0 else None


def no_model() -> None:
    raise ModelUnavailable("there is none")


def applied(edit: str) -> str:
    """What becomes of an edit, taken as one of a file and as one of the files that it names."""
    applier = Applier(no_model)  # type: ignore[arg-type]
    clear_caches()
    told = []
    for work in (
        lambda: applier.apply(ApplyRequest(PYTHON.encode(), edit, "a.py", mode="deterministic")),
        lambda: applier.apply_patch(PatchRequest(edit, mode="deterministic"), {"a.py": PYTHON.encode()}.get),
    ):
        try:
            told.append(repr(work().files))
        except HunkError as fault:
            told.append(repr((fault, getattr(fault, "reasons", ()))))
    return "\n".join(told)


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_ends_at_the_look_at_which_it_is_told_to_and_else_comes_to_the_same(name: str) -> None:
    alone, watched = applied(EDITS[name]), Stopping(after=1 << 30)
    with stop_when(watched):
        assert applied(EDITS[name]) == alone
    assert watched.num_looks >= 8, "it hardly looks"
    for after in {0, 1, 2, watched.num_looks // 2, watched.num_looks - 1}:
        with pytest.raises(StoppedError), stop_when(stopping := Stopping(after)):
            applied(EDITS[name])
        assert stopping.num_looks <= after + 2, "it went on, but for the parser, which is told to end and then raises"
    assert applied(EDITS[name]) == alone, "what was broken off left nothing behind"


def test_the_parser_ends_in_the_middle_of_a_text() -> None:
    """Tags that are never closed took it 18 s, in one call."""
    text = "<div>" * 20_000
    with stop_when(whole := Stopping(1 << 30)):
        count_errors(text, "html")
    assert whole.num_looks > 20
    clear_caches()
    with pytest.raises(StoppedError), stop_when(cut := Stopping(10)):
        count_errors(text, "html")
    assert cut.num_looks == 12


def test_where_nobody_waits_nothing_ends() -> None:
    check_stopped()
    assert not is_stopped()
    with stop_when(lambda: StoppedError()):
        assert is_stopped()
        with stop_when(lambda: None):
            check_stopped()
        with pytest.raises(StoppedError):
            check_stopped()
    check_stopped()


EDIT = "# ... existing code ...\ndef g2(x):\n    y = x - 2\n# ... existing code ...\n"
PATCH = "*** Begin Patch\n*** Update File: a.py\n@@ def f2(x):\n-    y = x + 2\n+    y = x - 2\n*** End Patch\n"


def num_looks(kind: str, salt: str) -> int:
    """How much work an edit is: how often it looks whether it is still waited for."""
    applier = Applier(no_model)  # type: ignore[arg-type]
    options = {"mode": "deterministic", "salt": salt}
    request = ApplyRequest(PYTHON.encode(), EDIT, "a.py", **options)  # type: ignore[arg-type]
    patch = PatchRequest(PATCH, **options)  # type: ignore[arg-type]
    count = 0

    def verdict() -> None:
        nonlocal count
        count += 1

    with stop_when(verdict):
        try:
            if kind == "apply":
                applier.apply(request)
            elif kind == "apply_each":
                applier.apply_each([request])
            else:
                applier.apply_patch(patch, {"a.py": PYTHON.encode()}.get)
        except HunkError:
            pass
    return count


@pytest.mark.parametrize("kind", ["apply", "apply_each", "apply_patch"])
def test_what_one_tenant_sent_makes_nothing_faster_for_another(kind: str) -> None:
    clear_caches()
    first, again, of_another = num_looks(kind, "ann"), num_looks(kind, "ann"), num_looks(kind, "bob")
    assert again < first
    assert of_another == first


def test_a_result_is_found_by_its_owner_until_it_is_forgotten() -> None:
    calls = []
    double = cache_results(2)(lambda number: calls.append(number) or 2 * number)
    for owner in ("ann", "ann", "bob", "ann"):
        with use_cache_of(owner):
            assert double(4) == 8
    assert calls == [4, 4]
    clear_caches()
    with use_cache_of("ann"):
        assert double(4) == 8
    assert calls == [4, 4, 4]
