"""An edit is shown in the file's unit of indentation where lines of both tell it, and only there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_runtime.prompt.builder import convert_indentation

FILE = "def f(x):\n    if x:\n        return 1\n    return 2\n\n\ndef g():\n    pass"


@pytest.mark.parametrize("unit", ["\t", "  "])
def test_another_unit_becomes_the_files(unit: str) -> None:
    edit = f"def f(x):\n{unit}if x:\n{unit}{unit}log(x)\n\n{unit}{unit}return 1\n# ... existing code ..."
    assert (
        convert_indentation(FILE, edit)
        == "def f(x):\n    if x:\n        log(x)\n\n        return 1\n# ... existing code ..."
    )


def test_lines_that_the_edit_moves_may_be_half_of_them() -> None:
    edit = "def f(x):\n\tif x:\n\t\treturn 1\n\n\ndef g():\n\t\tpass\n\t\treturn 2"
    shown = "def f(x):\n    if x:\n        return 1\n\n\ndef g():\n        pass\n        return 2"
    assert convert_indentation(FILE, edit) == shown
    assert convert_indentation(FILE, edit.replace("\treturn 1", "return 1")) == edit.replace("\treturn 1", "return 1")


def test_what_is_left_of_an_indentation_stays() -> None:
    names = [f"step{number}()" for number in range(10)]
    file_text = "\n".join(["def f(x):", *(f"    {name}" for name in names)])
    edit = "\n".join(["def f(x):", *(f"  {name}" for name in names), "  call(x,", "       y)"])
    assert convert_indentation(file_text, edit) == f"{file_text}\n    call(x,\n{' ' * 13}y)"


@pytest.mark.parametrize(
    "edit",
    [
        "def f(x):\n    if x:\n        log(x)\n        return 1",  # the file's own unit
        "if x:\n    return 1\nreturn 2",  # from column 0
        "def f(x):\n    while x:\n        if x:\n            return 1\n        return 2",  # moved deeper
        "def f(x):\n        return 3",  # one line in common: too little
        "def h():\n  return 4\n\n\ndef i():\n  return 5",  # nothing in common
        "def f(x):\n  if x:\n     return 1\n   return 2",  # no unit
        "def f(x):\n \tif x:\n\t\treturn 1",  # a mixture
        "",
    ],
)
def test_what_tells_no_other_unit_stays(edit: str) -> None:
    assert convert_indentation(FILE, edit) == edit


def test_lines_that_the_file_has_twice_tell_nothing() -> None:
    assert (
        convert_indentation(f"{FILE}\n{FILE}", "def f(x):\n  if x:\n    return 1") == "def f(x):\n  if x:\n    return 1"
    )


LEVELS = st.lists(st.tuples(st.integers(0, 3), st.text("abc", min_size=4, max_size=8)), min_size=2, max_size=8)


@given(LEVELS, st.sampled_from(["\t", "  ", "    "]), st.sampled_from(["\t", "  ", "    "]))
def test_a_text_shown_in_another_unit_comes_back(levels: list[tuple[int, str]], unit: str, other: str) -> None:
    lines = [(0, "top"), (1, "one"), *{name: (level, name) for level, name in levels}.values()]
    file_text, edit_text = ("\n".join(by * level + name for level, name in lines) for by in (unit, other))
    assert convert_indentation(file_text, edit_text) == file_text
