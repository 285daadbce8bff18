"""What makes a kernel another one: what Triton compiles for it, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels.op import OP_NAMES
from kernels.tuner.store import compute_source_hash

FILES = {
    "kernels/moved/kernel.py": "import triton\nfrom kernels.turned.kernel import turn\n\n@triton.jit\ndef f(): ...\n",
    "kernels/moved/parts.py": "import triton\n\n@triton.jit\ndef part(): ...\n",
    "kernels/moved/op.py": "from kernels.moved import kernel\n",
    "kernels/turned/kernel.py": "import triton\n\n@triton.jit\ndef turn(): ...\n",
    "kernels/other/kernel.py": "import triton\n\n@triton.jit\ndef g(): ...\n",
}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path / "kernels"


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("moved/kernel", True),
        ("moved/parts", True),
        ("moved/op", False),
        ("turned/kernel", True),
        ("other/kernel", False),
    ],
)
def test_only_what_is_compiled_for_an_op_counts(package: Path, name: str, counts: bool) -> None:
    before = compute_source_hash("moved", package)
    path = package / f"{name}.py"
    path.write_text(path.read_text(encoding="utf-8") + "# changed\n", encoding="utf-8")
    assert (compute_source_hash("moved", package) != before) == counts


def test_every_op_has_a_hash_of_its_own() -> None:
    assert len({compute_source_hash(name) for name in OP_NAMES}) == len(OP_NAMES)
