"""docs/sessions.md runs, and its limits are those that hold."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

from agent_runtime.session import files
from agent_runtime.session import session as one_session
from agent_runtime.session import session as sessions
from tests.agent_runtime.serving import serving
from tests.agent_runtime.session.conftest import A, Served

DOC = (Path(__file__).resolve().parents[3] / "docs" / "sessions.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", DOC, re.DOTALL | re.MULTILINE)


def test_the_example_runs(served: Served, tmp_path: Path) -> None:
    (tmp_path / "limits.py").write_text("LIMIT = 10\n\n\n" + A)
    (block,) = BLOCKS
    said = io.StringIO()
    with serving(served, tmp_path) as url, contextlib.redirect_stdout(said):
        exec(compile(block, "docs/sessions.md", "exec"), {"url": url})
    read, first, applied, second = said.getvalue().splitlines()
    assert read == "limits.py new"
    assert re.fullmatch(r"(stop|length) \d+ 0", first)
    assert applied == "merged True"
    assert second == "[('limits.py', 'changed')] ('limits.py',)"


def test_the_limits_are_those_that_hold() -> None:
    limits = DOC.partition("## Limits")[2]
    for said in (
        f"{files.MAX_SESSION_FILES}, of {files.MAX_BYTES / 1e6:.1f} MB together",
        f"{one_session.MAX_ANSWER_TOKENS:,} tokens by default",
        f"{sessions.MAX_OF_TENANT} per tenant and {sessions.MAX_IN_ALL} in all",
    ):
        assert said in limits
    assert sessions.IDLE_SECONDS == 3600, "an hour"
