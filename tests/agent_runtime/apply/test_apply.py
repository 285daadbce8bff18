"""The apply pipeline: who merges, what is checked, what is refused."""

from __future__ import annotations

from hashlib import sha256
from typing import NoReturn

import pytest

from agent_runtime.apply.pipeline import Applier
from agent_runtime.errors import BadFile, EditRefused, ModelUnavailable
from agent_runtime.llm.interface import Merger
from agent_runtime.types import ApplyRequest
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
