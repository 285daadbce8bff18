"""Whoever waits for a merge can end it, at whatever look, and whatever the edit is."""

from __future__ import annotations

import json

import pytest

from agent_runtime.apply.pipeline import Applier
from agent_runtime.errors import HunkError, ModelUnavailable
from agent_runtime.types import ApplyRequest, PatchRequest
from editor.execution import check_stopped, clear_caches, is_stopped, stop_when
from editor.syntax import count_errors

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
