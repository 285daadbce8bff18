"""docs/openai.md names every field and every code of an error, and its example is answered."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from openai import OpenAI

from agent_runtime.server import problems
from agent_runtime.server.openai import requests, routes
from tests.agent_runtime.openai.scripted_chat import ChattingMerger
from tests.agent_runtime.serving import serving

DOC = (Path(__file__).resolve().parents[3] / "docs" / "openai.md").read_text(encoding="utf-8")
QUOTED = set(re.findall(r"`([^`\n]+)`", DOC))


@pytest.mark.parametrize(
    "name",
    [
        *requests.ChatBody.model_fields,
        *requests.CodeApplyBody.model_fields,
        *requests.ApplyOptions.model_fields,
        *requests.IGNORED_FIELDS,
        *requests.NEUTRAL_VALUES,
        *requests.IGNORED_MESSAGE_FIELDS,
        *routes.APPLY_MODELS,
        *routes.APPLY_PREFIXES,
        *problems.OPENAI_CODES.values(),
    ],
)
def test_the_name_is_documented(name: str) -> None:
    assert name in QUOTED


def test_the_example_merges_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"```python\n(file = .*?)```", DOC, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    Path("limits.py").write_text("limit = 10\nretries = 3\n\n\ndef area(r):\n    return 3 * r * r\n")
    with serving(ChattingMerger()) as url, OpenAI(base_url=f"{url}/v1", api_key="any") as client:
        names = {"client": client}
        exec(
            code.replace('open("limits.py", newline="").read()', 'Path("limits.py").read_text()'), {"Path": Path}, names
        )
    assert names["merged"] == "limit = 10\nseconds = 5\nretries = 3\n\n\ndef area(r):\n    return 3 * r * r\n"
