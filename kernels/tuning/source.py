"""What a kernel was when it was tuned: a hash of all that Triton compiles for an op."""

from __future__ import annotations

import ast
import hashlib
from pathlib import Path

PACKAGE = Path(__file__).parents[1]


def source_hash(op_name: str, package: Path = PACKAGE) -> str:
    """Of the op's files that hold Triton code, and of those of other folders that they import.

    The wrapper and the op's description are not in it: they may change without the kernel being another.
    """
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(_compiled(op_name, package)):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _compiled(op_name: str, package: Path) -> set[Path]:
    found: set[Path] = set()
    waiting = sorted((package / op_name).glob("*.py"))
    while waiting:
        path = waiting.pop()
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        if path not in found and "triton.jit" in text:
            found.add(path)
            waiting += [package.parent / f"{name.replace('.', '/')}.py" for name in _imported(text)]
    return found


def _imported(text: str) -> list[str]:
    """'kernels.rope.kernel', from `from kernels.rope.kernel import rotate` and `from kernels.rope import kernel`."""
    names = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("kernels"):
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names if alias.name.startswith("kernels.")]
    return names
