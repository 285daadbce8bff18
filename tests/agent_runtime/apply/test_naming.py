"""An edit of several files beside one file: the part that fits it, or an error that names them."""

from __future__ import annotations

import pytest

from agent_runtime.apply.pipeline import Applier, select_edit
from agent_runtime.errors import EditRefused
from agent_runtime.llm.interface import render_blocks
from agent_runtime.types import ApplyRequest
from editor.formats import parse, parse_files
from editor.types import Check
from tests.agent_runtime.apply.test_patching import no_model
from tests.agent_runtime.scripted import ScriptedMerger

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
