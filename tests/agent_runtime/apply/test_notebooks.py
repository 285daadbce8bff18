"""Edits of notebooks: of the text of their cells, with every other byte as it was."""

from __future__ import annotations

import json
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_runtime.apply.pipeline import Applier
from agent_runtime.errors import EditRefused
from agent_runtime.types import ApplyRequest
from editor.notebook import CellsChangedError, parse_notebook
from tests.agent_runtime.scripted import ScriptedMerger

OUTPUT = {"output_type": "stream", "name": "stdout", "text": ["x = 1\n", "\u00e9\n"]}
SOURCES = [
    ("markdown", "# Load\n\nIt reads x = 1 first.\n"),
    ("code", "import math\nx = 1\n\n\ndef load(path):\n    return path"),
    ("code", ""),
    ("code", "%matplotlib inline\nprint(load('a'), x)"),
]


def make_notebook(sources: list[tuple[str, str]] = SOURCES, **style: Any) -> str:
    cells: list[dict[str, Any]] = []
    for number, (kind, source) in enumerate(sources):
        code = {"execution_count": number, "outputs": [OUTPUT]} if kind == "code" else {}
        cells.append({"cell_type": kind, "id": f"c{number}", "metadata": {"source": "x"}} | code)
        cells[-1]["source"] = source.splitlines(keepends=True)
    metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    notebook = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(notebook, **({"indent": 1, "ensure_ascii": False} | style)) + "\n"


def no_model() -> NoReturn:
    raise AssertionError("rules decide this edit")


def merge(raw: str, edit: Any, path: str = "nb.ipynb", **options: Any) -> Any:
    return Applier(no_model).apply(ApplyRequest(raw.encode(), edit, path, **options)).file


BLOCK = '<<<<<<< SEARCH\nimport math\nx = 1\n=======\nimport math\nx = "\u00e9"\n>>>>>>> REPLACE\n'


def test_an_edit_of_a_cell_is_one_of_its_source_and_outputs_stay() -> None:
    raw = make_notebook()
    file = merge(raw, BLOCK)
    assert (file.status, file.certainty, file.path) == ("merged", "certain", "nb.ipynb")
    assert file.merged == raw.replace('"x = 1\\n",\n    "\\n"', '"x = \\"\u00e9\\"\\n",\n    "\\n"')
    assert file.merged != raw
    assert [line for line in file.diff.split("\n") if line[:2] in ("- ", "+ ")] == [
        '-    "x = 1\\n",',
        '+    "x = \\"\u00e9\\"\\n",',
    ]


@pytest.mark.parametrize("style", [{"indent": 2}, {"indent": None}, {"indent": "\t"}, {"sort_keys": True}])
def test_the_style_of_the_file_stays(style: dict[str, Any]) -> None:
    raw = make_notebook(**style)
    edit = {"old_string": "    return path", "new_string": "    data = path\n    return data"}
    merged = merge(raw, edit).merged
    wanted = [(kind, source.replace("    return path", edit["new_string"])) for kind, source in SOURCES]
    assert merged == make_notebook(wanted, **style)


def test_line_endings_and_byte_order_mark_stay() -> None:
    raw = make_notebook().replace("\n", "\r\n")
    request = ApplyRequest(b"\xef\xbb\xbf" + raw.encode(), BLOCK, "nb.ipynb")
    data = Applier(no_model).apply(request).file.data
    assert data == b"\xef\xbb\xbf" + merge(make_notebook(), BLOCK).merged.replace("\n", "\r\n").encode()


@pytest.mark.parametrize(
    "edit",
    [
        {"old_string": "It reads x = 1 first.", "new_string": "It reads nothing."},
        "@@\n-It reads x = 1 first.\n+It reads nothing.\n",
        "*** Begin Patch\n*** Update File: nb.ipynb\n@@\n-It reads x = 1 first.\n+It reads nothing.\n*** End Patch\n",
    ],
    ids=["old and new", "diff", "v4a"],
)
def test_every_format_edits_markdown_too(edit: Any) -> None:
    assert merge(make_notebook(), edit).merged == make_notebook().replace("It reads x = 1 first.", "It reads nothing.")


def test_an_edit_that_quotes_the_json_is_one_of_the_json() -> None:
    raw = make_notebook()
    quoted = '<<<<<<< SEARCH\n    "import math\\n",\n=======\n    "import cmath\\n",\n>>>>>>> REPLACE\n'
    assert merge(raw, quoted).merged == raw.replace("import math", "import cmath")
    kernel = {"old_string": '"name": "python3"', "new_string": '"name": "py"'}
    assert merge(raw, kernel).merged == raw.replace('"name": "python3"', '"name": "py"')
    whole = make_notebook([*SOURCES, ("code", "y = 2")])
    assert merge(raw, whole, format="whole").merged == whole


def test_an_edit_that_fits_several_cells_is_refused_with_the_notebook_s_name() -> None:
    with pytest.raises(EditRefused) as refused:
        merge(make_notebook([("code", "x = 1\ny"), ("code", "x = 1\nz")]), {"old_string": "x = 1", "new_string": "x"})
    (reason,) = refused.value.reasons
    assert (reason.code, reason.path) == ("ambiguous", "nb.ipynb")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x = 1\n\n\ndef load", "x = 1\n# %% [code 9]\n\n\ndef load"),
        ("# %% [code 3]\n", ""),
        ("# %% [code 2]", "# %% [code 7]"),
    ],
    ids=["added", "joined", "renamed"],
)
def test_cells_are_not_added_nor_joined(old: str, new: str) -> None:
    with pytest.raises(EditRefused) as refused:
        merge(make_notebook(), {"old_string": old, "new_string": new})
    assert refused.value.reasons[0].reason.startswith("Only the text of cells can be edited")


def test_a_notebook_that_was_run_since_keeps_its_new_outputs() -> None:
    base, run = make_notebook(), make_notebook().replace('"execution_count": 1', '"execution_count": 71')
    changed = run.replace("It reads x = 1 first.", "It reads, first of all.")
    file = merge(changed, BLOCK, base=base.encode())
    assert file.merged == merge(changed, BLOCK).merged
    with pytest.raises(EditRefused) as refused:
        merge(run.replace('"x = 1\\n"', '"x = 3\\n"'), BLOCK, base=base.encode())
    assert (refused.value.reasons[0].code, refused.value.reasons[0].path) == ("conflict", "nb.ipynb")


def test_the_model_is_given_the_cells() -> None:
    notebook = parse_notebook(make_notebook())
    assert notebook is not None
    merger = ScriptedMerger(notebook.text.replace("x = 1\n\n", "x = 2\n\n"))
    request = ApplyRequest(make_notebook().encode(), "# ...\nx = 2\n# ...\n", "nb.ipynb", mode="model")
    file = Applier(lambda: merger).apply(request).file
    assert file.merged == make_notebook().replace('"x = 1\\n",\n    "\\n"', '"x = 2\\n",\n    "\\n"')
    assert merger.seen[0].path == "nb.ipynb.py"


@pytest.mark.parametrize(
    "raw",
    [
        "",
        "{",
        "[]",
        '{"cells": []}',
        '{"cells": {}, "nbformat": 4}',
        '{"cells": [1], "nbformat": 4}',
        '{"cells": [{"cell_type": "code"}], "nbformat": 4}',
        '{"cells": [{"cell_type": "code", "source": 3}], "nbformat": 4}',
        '{"cells": [{"cell_type": "code", "source": "a"}], "nbformat": 3}',
        '{"cells": [{"cell_type": "code", "source": "# %% [code 1]"}], "nbformat": 4}',
        '{"cells": [{"cell_type": "code", "source": "a"}], "nbformat": 4, "metadata": []}',
        "[" * 100_000,
    ],
)
def test_what_is_no_notebook_is_an_ordinary_file(raw: str) -> None:
    assert parse_notebook(raw) is None
    done = merge(raw + "old\n", {"old_string": "old", "new_string": "new"})
    assert done.merged == raw + "new\n"


KINDS = st.sampled_from(["code", "markdown", "raw"])
LINES = st.text(st.sampled_from('ax \u00e9\\"\n\t%#'), max_size=12)


@given(st.lists(st.tuples(KINDS, LINES), min_size=1, max_size=4), LINES, st.integers(0, 3))
def test_replacing_a_source_gives_the_notebook_that_has_it(
    sources: list[tuple[str, str]], new: str, number: int
) -> None:
    raw = make_notebook(sources)
    notebook = parse_notebook(raw)
    assert notebook is not None
    assert notebook.replace_text(notebook.text) == raw
    number %= len(sources)
    wanted = [(kind, new if at == number else source) for at, (kind, source) in enumerate(sources)]
    other = parse_notebook(make_notebook(wanted))
    assert other is not None
    assert json.loads(notebook.replace_text(other.text)) == json.loads(make_notebook(wanted))


def test_a_text_with_other_borders_is_refused() -> None:
    notebook = parse_notebook(make_notebook())
    assert notebook is not None
    for text in ("", notebook.text[1:], notebook.text + notebook.text, "a\n" + notebook.text):
        with pytest.raises(CellsChangedError):
            notebook.replace_text(text)
