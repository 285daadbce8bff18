"""A sketch written out is a snippet that is read as the same sketch."""

from __future__ import annotations

import pytest

from editor.formats import parse
from editor.snippets import render_snippet
from editor.types import Sketch

SNIPPETS = [
    "# ... existing code ...\n\ndef a():\n    return 1\n\n# ... existing code ...\n",
    "import os\n\n# ... existing code ...\n    # ... existing code ...\n    return 1\n",
    "class A:\n    # ... existing code ...\n    def b(self):\n        return 1\n    # ... existing code ...\n",
]


@pytest.mark.parametrize("text", SNIPPETS)
@pytest.mark.parametrize("language", ["python", "typescript", "css", "html", "sql", None])
def test_a_written_sketch_is_read_as_the_same(text: str, language: str | None) -> None:
    sketch = parse(text, "lazy").changes
    assert isinstance(sketch, Sketch)
    assert parse(render_snippet(sketch, language) + "\n", "lazy").changes == sketch


def test_in_its_own_language_it_is_the_same_text() -> None:
    for text in SNIPPETS:
        sketch = parse(text, "lazy").changes
        assert isinstance(sketch, Sketch)
        assert render_snippet(sketch, "python") == text.removesuffix("\n")
