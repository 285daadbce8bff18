"""The examples of formats in docs/api.md are what they are said to be, and certain."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from editor.formats import parse
from editor.merge import merge
from editor.types import Merged

DOC = (Path(__file__).resolve().parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
FORMATS = DOC.partition("## Formats")[2].partition("\n## ")[0]
EXAMPLES = re.findall(r"^`(\w+)`[,:](?:(?!^`).)*?^```\w*\n(.*?)^```", FORMATS, re.DOTALL | re.MULTILINE)
FILES = {
    "v4a": "class Limits:\n    limit = 10\n",
    "lazy": "import os\n\n\ndef limit():\n    return 10\n",
}
FILE = "limit = 10\n\n"


@pytest.mark.parametrize(("name", "edit"), EXAMPLES)
def test_the_example_is_read_as_its_format(name: str, edit: str) -> None:
    parsed = parse(edit)
    assert parsed.format == name
    if name != "lazy":
        outcome = merge(FILES.get(name, FILE), parsed, "python")
        assert isinstance(outcome, Merged)
        assert "limit = 20" in outcome.text


def test_every_format_but_the_whole_file_has_an_example() -> None:
    assert sorted(name for name, _ in EXAMPLES) == ["lazy", "lines", "replace", "search_replace", "udiff", "v4a"]
