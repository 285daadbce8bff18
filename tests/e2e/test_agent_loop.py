"""The example agent mends its test with a model's answer: in its process, by a service, and over the OpenAI routes."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.e2e.service import ROOT, Running, scripted
from tests.scripted_model import Line, write_script

pytestmark = pytest.mark.e2e

AGENT = ROOT / "examples" / "agent_loop.py"
MODEL = "smollm2-135m"
ANSWER = "```python\ndef average(marks):\n    return sum(marks) / len(marks) if marks else 0\n```\n"
SCRIPT = Line(("The function average of marks.py raised this.",), ANSWER)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("root")
    options = ("--allow-root", tempfile.gettempdir())
    with scripted(folder, folder.with_suffix(".json"), SCRIPT, arguments=options) as service:
        yield service


def agent(*arguments: str, program: Sequence[str | Path] = (AGENT,)) -> str:
    """What the agent prints; it has to end with all tests passing."""
    command = [sys.executable, *program, *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False, cwd=ROOT)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "all tests pass" in ran.stdout
    assert re.search(r"in all: [1-9]\d* tokens of prompt: \d+ reused exactly", ran.stdout)
    return ran.stdout


def test_with_the_model_of_a_service(served: Running) -> None:
    assert "average in marks.py was replaced" in agent("--url", served.url)


def test_with_an_endpoint_in_openais_shape(served: Running) -> None:
    agent("--base-url", f"{served.url}/v1", "--model", MODEL)


def test_with_a_model_in_its_process(tmp_path: Path) -> None:
    script = write_script(tmp_path / "script.json", SCRIPT)
    agent("--model", MODEL, program=["-m", "tests.scripted_model", script, AGENT])


def test_it_says_what_is_wrong_in_a_line() -> None:
    for arguments in (["--url", "http://127.0.0.1:9"], ["--base-url", "http://127.0.0.1:9/v1"], ["--model", "nosuch"]):
        ran = subprocess.run(
            [sys.executable, AGENT, *arguments], capture_output=True, text=True, timeout=120, check=False
        )
        assert ran.returncode > 1
        assert ran.stderr.startswith("agent_loop: ")
        assert "Traceback" not in ran.stderr
