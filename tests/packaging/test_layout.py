"""The packages of a wheel: all below `hunk/`, with their imports rewritten (`hatch_build.py`)."""

from __future__ import annotations

import ast
import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def build() -> Any:
    """The build hook, with a stand-in for hatchling, which is installed only while a wheel is built."""
    names = ["hatchling", "hatchling.builders", "hatchling.builders.hooks", "hatchling.builders.hooks.plugin"]
    interface = types.ModuleType("hatchling.builders.hooks.plugin.interface")
    interface.BuildHookInterface = object  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.setitem(sys.modules, name, types.ModuleType(name))
        patch.setitem(sys.modules, interface.__name__, interface)
        spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("from editor.types import A, B\n", "from hunk.editor.types import A, B\n"),
        ("from engine import errors as e  # why\n", "from hunk.engine import errors as e  # why\n"),
        ("import kernels.op as op, json\n", "import hunk.kernels.op as op, json\n"),
        ("def f():\n    from repo_cache import x\n    return x\n", None),
        ("if TYPE_CHECKING:\n    from agent_runtime.types import (\n        A,\n    )\n", None),
        ("é = 'é'; from editor import é\n", "é = 'é'; from hunk.editor import é\n"),
        (
            "from . import editor\nfrom .editor import x\nimport editors\n",
            "from . import editor\nfrom .editor import x\nimport editors\n",
        ),
        ('"""Says `from editor.x import y`."""\n', '"""Says `from editor.x import y`."""\n'),
    ],
)
def test_imports_are_rewritten_and_nothing_else(build: Any, text: str, expected: str | None) -> None:
    if expected is None:
        expected = text.replace("from repo_cache", "from hunk.repo_cache").replace("from agent_", "from hunk.agent_")
    assert build.rewrite_imports(text) == expected


@pytest.mark.parametrize("text", ["import editor.types\n", "x = 1\nNAME = 'engine.decoder'\n"])
def test_what_cannot_be_rewritten_stops_the_build_with_its_line(build: Any, text: str) -> None:
    with pytest.raises(ValueError, match=r"line [12]: "):
        build.rewrite_imports(text)


def test_the_packages_of_the_checkout_name_each_other_below_hunk(build: Any, tmp_path: Path) -> None:
    build.write_package(ROOT, tmp_path / "hunk")
    modules = list((tmp_path / "hunk").rglob("*.py"))
    assert len(modules) > 250
    for path in modules:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            named = [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            named += [name.name for name in node.names] if isinstance(node, ast.Import) else []
            assert not {name.partition(".")[0] for name in named} & set(build.PACKAGES), path
    for data in ("agent_runtime/page/page.css", "editor/reader/weights.json", "kernels/native/__init__.py", "py.typed"):
        assert (tmp_path / "hunk" / data).is_file()
