"""Builds the wheel: the packages of the checkout go below `hunk/`, and their imports are rewritten.

A wheel with `editor` and `kernels` at the top level would overwrite two packages of PyPI with these names. An editable
install is not rewritten: it puts the checkout on the path.
"""

from __future__ import annotations

import ast
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGES = ("agent_runtime", "editor", "engine", "kernels", "repo_cache")
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc", "*.so")


class WheelLayout(BuildHookInterface):
    """Called by hatchling (`[tool.hatch.build.targets.wheel.hooks.custom]`)."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the files of the wheel into a temporary folder, and have them included."""
        if version == "editable":
            return
        self._folder = tempfile.TemporaryDirectory(prefix="hunk-wheel-")
        package = Path(self._folder.name) / "hunk"
        write_package(Path(self.root), package)
        build_data["force_include"][str(package)] = "hunk"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the temporary folder."""
        if version != "editable":
            self._folder.cleanup()


def write_package(checkout: Path, package: Path) -> None:
    """Write the package `hunk` of a checkout, the others below it; raises ValueError as `rewrite_imports` does."""
    shutil.copytree(checkout / "hunk", package, ignore=LEFT_OUT)
    for name in PACKAGES:
        shutil.copytree(checkout / name, package / name, ignore=LEFT_OUT)
    for path in package.rglob("*.py"):
        text = path.read_bytes().decode("utf-8")
        try:
            path.write_bytes(rewrite_imports(text).encode("utf-8"))
        except ValueError as error:
            raise ValueError(f"{path.relative_to(package)}: {error}") from error


def rewrite_imports(text: str) -> str:
    """Return a module's text with `from editor.x import y` as `from hunk.editor.x import y`; the rest is unchanged.

    Raises ValueError, with the line, where a package is named in a way that cannot be rewritten: `import editor.x`
    binds another name, and a string with a module's name cannot be told from other text.
    """
    lines = text.splitlines(keepends=True)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and _is_ours(node.module or ""):
            _insert(lines, node, f"from {node.module}", f"from hunk.{node.module}")
        elif isinstance(node, ast.Import):
            for name in node.names:
                if _is_ours(name.name):
                    if name.asname is None:
                        raise ValueError(f"line {node.lineno}: import {name.name} cannot be rewritten; use `from`")
                    _insert(lines, name, name.name, f"hunk.{name.name}")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _is_module_name(node.value):
            raise ValueError(f"line {node.lineno}: {node.value!r} is a module's name; use __package__")
    return "".join(lines)


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in PACKAGES


def _is_module_name(text: str) -> bool:
    return "." in text and _is_ours(text) and all(part.isidentifier() for part in text.split("."))


def _insert(lines: list[str], node: ast.stmt | ast.alias, old: str, new: str) -> None:
    """Replace `old`, which begins the node's text, by `new`; nothing else of ours stands on that line."""
    at = node.lineno - 1
    start = len(lines[at].encode()[: node.col_offset].decode())
    if not lines[at].startswith(old, start):
        raise ValueError(f"line {node.lineno}: expected {old!r}")
    lines[at] = lines[at][:start] + new + lines[at][start + len(old) :]
