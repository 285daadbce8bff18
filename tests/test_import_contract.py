"""The import contract is held, and its check can fail."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("agent_runtime", "editor", "engine", "kernels", "repo_cache")
LINT = "from importlinter.cli import lint_imports_command; lint_imports_command()"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """import-linter over the packages of that folder, not over the installed ones."""
    code = f"import sys; sys.path.insert(0, {str(folder)!r}); sys.argv = ['lint-imports', '--no-cache']; {LINT}"
    command = [sys.executable, "-P", "-c", code]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


def test_the_tree_keeps_the_contract(copy: Path) -> None:
    done = lint_imports(copy)
    assert done.returncode == 0, done.stdout
    assert "0 broken" in done.stdout


@pytest.mark.parametrize(
    ("file", "line", "broken"),
    [
        ("editor/planted.py", "import engine", "editor imports nothing of ours"),
        ("editor/planted.py", "def f():\n    from engine import decoder", "editor imports nothing of ours"),
        ("engine/planted.py", "import repo_cache.tokenizer", "engine imports kernels only"),
        ("kernels/planted.py", "import engine", "kernels imports torch and triton"),
        (
            "repo_cache/planted.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import editor",
            "repo_cache imports nothing of ours",
        ),
        ("editor/planted.py", "import torch", "editor and repo_cache know no torch"),
        ("agent_runtime/planted.py", "import kernels.rope", "agent_runtime reaches kernels only through engine"),
        ("agent_runtime/planted.py", "import tokenizers", "the tokenizer has one door"),
        (
            "agent_runtime/llm/planted.py",
            "from agent_runtime.apply import pipeline",
            "the packages of agent_runtime form no circle",
        ),
    ],
)
def test_a_planted_import_breaks_it(copy: Path, file: str, line: str, broken: str) -> None:
    (copy / file).write_text(f'"""Planted."""\n\n{line}\n')
    done = lint_imports(copy)
    assert done.returncode == 1
    assert any(broken in found and "BROKEN" in found for found in done.stdout.splitlines()), done.stdout
