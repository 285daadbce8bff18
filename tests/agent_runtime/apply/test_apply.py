"""The apply pipeline: who merges, what is checked, what is refused."""

from __future__ import annotations

import subprocess
from hashlib import sha256
from pathlib import Path
from typing import NoReturn

import pytest

from agent_runtime.apply.pipeline import Applier, select_edit
from agent_runtime.apply.result import MAX_DIFF_LINES, MAX_READINGS, build_reason, find_refusal, render_file_diff
from agent_runtime.errors import BadFile, EditRefused, ModelUnavailable
from agent_runtime.llm.interface import Merger, render_blocks
from agent_runtime.types import ApplyRequest, Mode, Options
from editor.formats import parse, parse_files
from editor.patch_set import merge_files
from editor.types import Candidate, Check, Unresolved
from tests.agent_runtime.scripted import ScriptedMerger

BEFORE = "import os\n\n\ndef load(path):\n    return open(path).read()\n\n\ndef size(path):\n"
FILE = (BEFORE + "    return os.path.getsize(path)\n").replace("\n", "\r\n")
RIGHT = BEFORE + "    return os.stat(path).st_size\n"
BLOCK = """<<<<<<< SEARCH
    return open(path).read()
=======
    with open(path) as file:
        return file.read()
>>>>>>> REPLACE
"""
OPEN_SNIPPET = "# ... existing code ...\n\ndef load(path):\n\ndef size(path):\n    return os.stat(path).st_size\n"
"""Nothing says whether the body of the first function is to go."""


def no_model() -> NoReturn:
    raise ModelUnavailable("no model in this test")


def request(edit: str, **more: object) -> ApplyRequest:
    return ApplyRequest(FILE.encode(), edit, path="files.py", **more)  # type: ignore[arg-type]


def applier(merger: Merger) -> Applier:
    return Applier(lambda: merger)


def test_a_block_that_matches_once_is_merged_by_rule_without_a_model() -> None:
    result = Applier(no_model).apply(request(BLOCK))
    assert (result.status, result.file.method, result.file.certainty) == ("merged", "deterministic", "certain")
    expected = FILE.replace(
        "    return open(path).read()\r\n", "    with open(path) as file:\r\n        return file.read()\r\n"
    )
    assert result.file.merged == expected
    assert result.file.sha256_before == sha256(FILE.encode()).hexdigest()
    assert result.file.sha256_after == sha256(expected.encode()).hexdigest()
    assert result.usage.forwards == 0
    assert all(check.ok for check in result.file.checks)


def test_applying_the_same_edit_twice_is_a_noop_that_says_so() -> None:
    once = Applier(no_model).apply(request(BLOCK))
    twice = Applier(no_model).apply(ApplyRequest(once.file.merged.encode(), BLOCK, path="files.py"))
    assert twice.status == "noop"
    assert twice.file.merged == once.file.merged
    assert twice.file.diff == ""


def test_what_no_rule_decides_goes_to_the_model_and_keeps_the_files_line_endings() -> None:
    result = applier(ScriptedMerger(RIGHT)).apply(request(OPEN_SNIPPET))
    assert (result.status, result.file.method, result.file.certainty) == ("merged", "model", "model")
    assert result.file.merged == RIGHT.replace("\n", "\r\n")
    assert result.usage.completion == 5


def test_deterministic_mode_refuses_with_reasons_instead_of_asking_the_model() -> None:
    with pytest.raises(EditRefused) as refused:
        Applier(no_model).apply(request(OPEN_SNIPPET, mode="deterministic"))
    assert refused.value.reasons[0].code == "open_intent"
    assert refused.value.exit_code == 3


def test_model_mode_asks_the_model_even_where_a_rule_would_do() -> None:
    merger = ScriptedMerger(FILE.replace("\r\n", "\n").replace("return open(path).read()", "x = 1"))
    applier(merger).apply(request(BLOCK, mode="model"))
    assert len(merger.seen) == 1


@pytest.mark.parametrize(
    ("answer", "truncated", "check"),
    [
        (RIGHT.replace("    return open(path).read()", "    # ... existing code ..."), False, "marker_leak"),
        (RIGHT.replace("def load(path):", "def loads(path):"), True, "accounted"),
        (FILE.replace("\r\n", "\n"), False, "no_op"),
        (RIGHT.replace("os.stat(path).st_size", "os.stat(path"), False, "parse_errors"),
        (RIGHT[:70], True, "truncated_tail"),
    ],
)
def test_a_damaged_answer_is_rejected_by_the_check_that_names_it(answer: str, truncated: bool, check: str) -> None:
    result = applier(ScriptedMerger(answer, truncated)).apply(request(OPEN_SNIPPET))
    assert result.status == "rejected"
    assert check in {found.name for found in result.file.checks if not found.ok}
    assert result.file.merged, "a rejected merge still carries everything"


def test_what_a_model_alters_elsewhere_is_given_back_and_named() -> None:
    snippet = "# ... existing code ...\n\ndef size(path):\n    return os.stat(path).st_size\n"
    model = ScriptedMerger(RIGHT.replace("import os", "import os as o"))
    result = applier(model).apply(request(snippet, mode="model"))
    assert (result.status, result.file.certainty) == ("merged", "model")
    assert result.file.merged == RIGHT.replace("\n", "\r\n")
    lines = {(line.kind, line.text) for line in result.file.repaired}
    assert lines == {("removed", "import os"), ("added", "import os as o")}


def test_what_a_model_drops_beside_the_edit_is_not_given_back() -> None:
    damaged = RIGHT.replace("def load(path):\n    return open(path).read()\n\n\n", "")
    result = applier(ScriptedMerger(damaged)).apply(request(OPEN_SNIPPET))
    assert (result.status, result.file.repaired) == ("rejected", ())


@pytest.mark.parametrize(
    ("original", "what"),
    [(b"\x7fELF\x00\x01", "binary"), ("x = 1\n".encode("utf-16-le"), "UTF-16"), (b"\xef\xbb\xbf\xff\n", "UTF-8")],
)
def test_a_file_that_is_no_text_is_refused_clearly(original: bytes, what: str) -> None:
    with pytest.raises(BadFile, match=what):
        Applier(no_model).apply(ApplyRequest(original, BLOCK))


@pytest.mark.parametrize(
    ("edit", "code"), [("", "empty_edit"), (" \n\n", "empty_edit"), ("# ... existing code ...\n", "only_markers")]
)
def test_an_edit_without_content_is_refused_before_anything_is_tried(edit: str, code: str) -> None:
    with pytest.raises(EditRefused) as refused:
        Applier(no_model).apply(request(edit))
    assert refused.value.reasons[0].code == code


def test_the_file_is_kept_byte_for_byte_outside_the_edit() -> None:
    odd = "\ufeffa = 'e\u0301'  \r\nb = 1\nc = '\x0c'\t\r\nreturn_ = 2"
    edit = "<<<<<<< SEARCH\nb = 1\n=======\nb = 2\n>>>>>>> REPLACE\n"
    result = Applier(no_model).apply(ApplyRequest(odd.encode(), edit))
    assert result.file.merged == odd.replace("b = 1", "b = 2")


OPEN_END = "\\ No newline at end of file\n"


@pytest.mark.parametrize(
    ("before", "edit", "after"),
    [
        (b"a\nb", f"--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n a\n-b\n{OPEN_END}+b\n", b"a\nb\n"),
        (b"a\nb\n", f"--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n a\n-b\n+b\n{OPEN_END}", b"a\nb"),
        (b"a\r\nb", f"--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n-a\n+A\n-b\n{OPEN_END}+b\n", b"A\r\nb\r\n"),
        (b"a\nb", '{"old_string": "a\\nb", "new_string": "A\\nb\\n"}', b"A\nb\n"),
        (b"f {\r\n}\r\n}\nend\n", '{"start_line": 2, "end_line": 2, "old": "}", "new": ""}', b"f {\r\n}\nend\n"),
        (b"f {\r\n}\r\n}\nend\n", '{"old_string": "f {\\n}\\n", "new_string": "f {\\n"}', b"f {\r\n}\nend\n"),
        (b"}\nx\n}\r\n}\nx\n", '{"old_string": "}\\nx", "new_string": "x", "replace_all": true}', b"x\n}\r\nx\n"),
        (
            b"\xef\xbb\xbfa\nb\n",
            "--- a/x\n+++ b/x\n@@ -1 +1,2 @@\n-\ufeffa\n+\ufefftop\n+a\n b\n",
            b"\xef\xbb\xbftop\na\nb\n",
        ),
        (b"\xef\xbb\xbfa\nb\n", '{"old_string": "\ufeffa", "new_string": "\ufeffA"}', b"\xef\xbb\xbfA\nb\n"),
    ],
)
def test_ends_endings_and_marks_are_as_the_edit_leaves_them(before: bytes, edit: str, after: bytes) -> None:
    result = Applier(no_model).apply(ApplyRequest(before, edit, path="x"))
    assert (result.status, result.file.data) == ("merged", after)


@pytest.mark.parametrize("edit", ["-\ufeffa\n+a\n", "-\ufeffa\n+\ufeffb\n\\ c\n-b\n+\0\n"])
def test_a_change_of_the_mark_alone_and_a_nul_are_refused(edit: str) -> None:
    with pytest.raises((EditRefused, BadFile)):
        Applier(no_model).apply(
            ApplyRequest(b"\xef\xbb\xbfa\nb\n", f"--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n{edit}", path="x")
        )


# Selection of the edit for one file from an edit of several files.


DIFF = """--- a/src/a.py
+++ b/src/a.py
@@ -1 +1 @@
-a = 1
+a = 2
--- a/tests/b.py
+++ b/tests/b.py
@@ -1 +1 @@
-a = 1
+a = 3
"""


def merged(path: str, edit: str = DIFF) -> str:
    return Applier(no_model).apply(ApplyRequest(b"a = 1\n", edit, path, mode="deterministic")).file.merged


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("src/a.py", "a = 2\n"),
        ("/home/me/project/src/a.py", "a = 2\n"),
        ("b.py", "a = 3\n"),
        ("./tests/b.py", "a = 3\n"),
    ],
)
def test_the_part_whose_path_fits_is_taken(path: str, expected: str) -> None:
    assert merged(path) == expected


@pytest.mark.parametrize("path", ["c.py", "other/a.py", "", "py"])
def test_where_no_part_fits_the_files_are_named(path: str) -> None:
    with pytest.raises(EditRefused) as fault:
        merged(path)
    assert fault.value.reasons[0].code == "several_files"
    assert "src/a.py, tests/b.py" in str(fault.value)


def test_what_is_left_out_for_other_files_is_told() -> None:
    (edit, other) = parse_files(DIFF)
    assert select_edit("src/a.py", (edit, other)).left_out == ("tests/b.py",)
    file = Applier(no_model).apply(ApplyRequest(b"a = 1\n", DIFF, "src/a.py", mode="deterministic")).file
    assert file.checks[-1] == Check("other_files", True, "left out what the edit has for: tests/b.py")


BLOCKS = """a.py
<<<<<<< SEARCH
a = 1
=======
a = 2
>>>>>>> REPLACE

### utils.py
<<<<<<< SEARCH
b = 1
=======
b = 2
>>>>>>> REPLACE
"""


def test_blocks_below_another_name_are_not_left_out() -> None:
    with pytest.raises(EditRefused, match=r"a\.py, utils\.py") as fault:
        merged("a.py", BLOCKS)
    assert fault.value.reasons[0].code == "several_files"


def test_a_file_that_is_named_twice_is_one_file() -> None:
    hunks = ("-a = 1\n+a = 2\n", "-c = 1\n+c = 2\n")
    twice = (
        "".join(
            f"--- a/x.py\n+++ b/x.py\n@@ -{line} +{line} @@\n{hunk}" for line, hunk in zip((1, 3), hunks, strict=True)
        ),
        "".join(["*** Begin Patch\n", *(f"*** Update File: x.py\n@@\n{hunk}" for hunk in hunks), "*** End Patch\n"]),
    )
    for edit in twice:
        request = ApplyRequest(b"a = 1\nb = 1\nc = 1\n", edit, "src/x.py", mode="deterministic")
        assert Applier(no_model).apply(request).file.merged == "a = 2\nb = 1\nc = 2\n"
        assert parse(edit).path == "x.py"


def test_parts_of_one_file_that_build_on_each_other_are_not_joined() -> None:
    first = "--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a = 1\n+a = 2\n"
    with pytest.raises(EditRefused, match="2 of them fit"):
        merged("x.py", first + first.replace("2", "3").replace("-a = 1", "-a = 2"))


def test_where_two_parts_fit_none_is_taken() -> None:
    with pytest.raises(EditRefused, match="2 of them fit"):
        merged("a.py", DIFF.replace("tests/b.py", "tests/a.py"))


def test_an_edit_of_one_file_fits_any() -> None:
    assert merged("elsewhere/other.py", DIFF.partition("--- a/tests")[0]) == "a = 2\n"


def test_a_model_reads_the_part_of_this_file_only() -> None:
    merger = ScriptedMerger("a = 2\n")
    Applier(lambda: merger).apply(ApplyRequest(b"a = 1\n", DIFF, "src/a.py", mode="model"))
    assert merger.seen[0].edit == "<<<<<<< SEARCH\na = 1\n=======\na = 2\n>>>>>>> REPLACE\n"


@pytest.mark.parametrize(
    "edit",
    [
        "*** Begin Patch\n*** Delete File: a.py\n*** End Patch\n",
        "diff --git a/a.py b/b.py\nsimilarity index 100%\nrename from a.py\nrename to b.py\n",
    ],
)
def test_what_is_not_about_the_text_is_refused_for_a_single_file(edit: str) -> None:
    with pytest.raises(EditRefused) as fault:
        merged("a.py", edit)
    assert fault.value.reasons[0].code == "open_intent"
    assert "'a.py'" in str(fault.value)


def test_a_file_that_is_to_be_created_must_not_stand_there_with_another_text() -> None:
    patch = "*** Begin Patch\n*** Add File: a.py\n+a = {}\n*** End Patch\n"
    with pytest.raises(EditRefused) as fault:
        merged("a.py", patch.format(2))
    assert fault.value.reasons[0].code == "file_exists"
    same = Applier(no_model).apply(ApplyRequest(b"a = 1\n", patch.format(1), "a.py"))
    assert same.status == "noop"


def test_every_quoting_edit_reads_as_blocks_that_mean_the_same() -> None:
    edit = (
        '[{"path": "a", "old_string": "x\\ny", "new_string": ""}, {"path": "a", "old_string": "z", "new_string": "Z"}]'
    )
    (parsed,) = parse_files(edit)
    (again,) = parse_files(render_blocks(parsed))
    assert again.old_lines == parsed.old_lines
    assert again.new_lines == ("Z",)


def test_an_edit_by_line_numbers_alone_does_not_read_as_blocks() -> None:
    (parsed,) = parse_files('{"start_line": 1, "end_line": 1, "new": "x"}', "lines")
    assert render_blocks(parsed) == ""


# Reasons of a refusal: candidates as short diffs.


ORIGINAL = "".join(f"line {number}\n" for number in range(100))


def test_a_candidate_is_told_by_its_difference_to_the_original() -> None:
    changed = ORIGINAL.replace("line 50\n", "new\n")
    reason = build_reason(
        Unresolved("ambiguous", "two", 2, candidates=(Candidate(changed, 0.7, "why"),)), ORIGINAL, "a"
    )
    assert reason.candidates[0].diff == "@@ -50,3 +50,3 @@\n line 49\n-line 50\n+new\n line 51"
    assert (reason.path, reason.num_candidates) == ("a", 2)


def test_long_diffs_and_lines_and_many_candidates_are_cut_and_say_so() -> None:
    long = Candidate(ORIGINAL.replace("line", "x" * 1000), 0.5, "long")
    reason = build_reason(Unresolved("ambiguous", "many", candidates=(long,) * 8), ORIGINAL, "a")
    lines = reason.candidates[0].diff.split("\n")
    assert len(lines) == MAX_DIFF_LINES + 1
    assert lines[-1] == f"({201 - MAX_DIFF_LINES} lines more)"
    assert len(reason.candidates) == MAX_READINGS
    assert reason.num_candidates == 8
    cut = build_reason(Unresolved("stale", "", candidates=(Candidate("y" * 900 + "\n", 1.0, ""),)), "x\n", "a")
    assert cut.candidates[0].diff.endswith("(701 more)")


LAZY, REFUSED_BLOCK = "# ...\ndef h():\n    return 3\n", "<<<<<<< SEARCH\nx\n=======\ny\n>>>>>>> REPLACE\n"


@pytest.mark.parametrize(
    ("edit", "mode", "suggestion", "told"),
    [
        (LAZY, "deterministic", "Show more lines.", "Use mode 'model' or 'auto', or show more lines."),
        (LAZY, "deterministic", "", "Use mode 'model' or 'auto'."),
        (REFUSED_BLOCK, "deterministic", "Show more lines.", "Show more lines."),
        (REFUSED_BLOCK, "auto", "Show more lines.", "Show more lines."),
    ],
)
def test_another_mode_is_suggested_where_it_would_help(edit: str, mode: Mode, suggestion: str, told: str) -> None:
    (parsed,) = parse_files(edit, "auto", "a.py")
    open_edit = Unresolved("open_intent", "It is open.", suggestion=suggestion)
    reason = find_refusal(open_edit, parsed, Options(mode=mode), ORIGINAL, "a.py")
    assert reason is not None
    assert reason.suggestion == told


# Diffs of whole files: `git apply` and Hunk itself can apply them.


CASES = [
    ("a\nb\n", "a\nc\n", ""),
    ("a\nb\n", "a\nc\n", "new.py"),
    ("a\nb\n", "a\nb\n", "new.py"),
    ("a\n", "a", ""),
    (None, "a\nb\n", ""),
    (None, "", ""),
    ("a\nb\n", None, ""),
    ("", None, ""),
]


@pytest.mark.parametrize(("before", "after", "move_to"), CASES)
@pytest.mark.parametrize("path", ["old.py", "with space.py"])
def test_git_applies_it(tmp_path: Path, before: str | None, after: str | None, move_to: str, path: str) -> None:
    if before is not None:
        (tmp_path / path).write_text(before)
    patch = render_file_diff(before, after, path, move_to)
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=patch, text=True, check=True)
    wanted = {} if after is None else {move_to or path: after}
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == wanted


@pytest.mark.parametrize(("before", "after", "move_to"), CASES)
def test_hunk_reads_it_back(before: str | None, after: str | None, move_to: str) -> None:
    edits = parse_files(render_file_diff(before, after, "old.py", move_to))
    result = merge_files({} if before is None else {"old.py": before}, edits)
    assert not result.refusals
    assert result.writes.get(move_to or "old.py") == after
    if move_to:
        assert result.writes["old.py"] is None


def test_equal_texts_have_no_diff() -> None:
    assert render_file_diff("a\n", "a\n", "a.py") == ""
