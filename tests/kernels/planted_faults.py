"""Typical faults of kernels, planted in copies of ours; each changes one text in one file."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

import pytest

PACKAGE = Path(importlib.util.find_spec("kernels").submodule_search_locations[0])


@dataclass(frozen=True, slots=True)
class Fault:
    """`old` becomes `new`, wherever it stands, in the Triton module of an op."""

    op: str
    old: str
    new: str
    shows_at: Mapping[str, int] = field(default_factory=dict)
    """Sizes of the parity shapes that it shows at; the others are not tried."""
    shows_in: Mapping[str, int] = field(default_factory=dict)
    """Constants of the variants that it shows in, if the wrapper's choice is none of them."""
    module: str = ""
    """Where it is not the op's own `kernel`."""

    @property
    def module_name(self) -> str:
        return self.module or f"kernels.{self.op}.kernel"

    def __str__(self) -> str:
        return f"{self.op}: {self.old} -> {self.new}"


LOOP = {"PER_PROCESSOR": 2, "num_stages": 1}
"""Of variants whose programs take several blocks."""

FAULTS = [
    Fault("paged_attention", "seen = places[None, :] < ends[:, None]", "seen = places[None, :] <= ends[:, None]"),
    Fault(
        "paged_attention",
        "seen &= places[None, :] >= lows[:, None]",
        "seen &= places[None, :] > lows[:, None]",
        {"window": 20},
    ),
    Fault("paged_attention", "page.to(tl.int64) * PAGE_SIZE", "page.to(tl.int64) * (PAGE_SIZE + 1)"),
    Fault("paged_attention", "SCALE_STRIDE + kv_head, held", "SCALE_STRIDE, held", {"int8": 1}),
    Fault("paged_attention", "heads = kv_head * GROUP + flat % GROUP", "heads = kv_head * GROUP + flat // GROUP"),
    Fault(
        "paged_attention",
        "tl.program_id(2) * chunk",
        "tl.program_id(2) * (chunk - 1)",
        {"num_keys": 300},
    ),
    Fault("paged_attention", "tail_sums = tail_sums * fading[:, None]", "tail_sums += 0.0", {"head_dim": 80}),
    Fault("paged_attention", "at_rows[:, None] * (HEAD_DIM + TAIL)", "at_rows[:, None] * HEAD_DIM", {"head_dim": 80}),
    Fault("rope_write", "1 if pool_values is None else 2", "2", {"latent": 1}),
    Fault("span_placement", "2 if has_values else 1", "2 if has_values else 0", {"latent": 1}),
    Fault("paged_attention", "level = top + tl.math.log2(", "level = top - tl.math.log2(", {"num_keys": 300}),
    Fault("rope_write", "head < num_kv_heads", "head <= num_kv_heads"),
    Fault("rope_write", "place = slot * (num_kv_heads * head_dim)", "place = (slot + 1) * (num_kv_heads * head_dim)"),
    Fault("rope_write", "slot >= 0", "slot >= -1"),
    Fault("rope_write", "slot >= 0", "slot >= -1", {"int8": 1}),
    Fault("rope_write", "first *= factor", "first *= factor * 2", {"num_tokens": 7, "int8": 1}),
    Fault(
        "rope_write", "dim + half, mask=mask, other=0.0)", "dim, mask=mask, other=0.0)", {"num_tokens": 7, "int8": 1}
    ),
    Fault(
        "rope_write",
        "num_kv_heads * half + head",
        "num_kv_heads * half + 0 * head",
        {"int8": 1},
        module="kernels.attention.kernel",
    ),
    Fault("rope_write", "+ ROUNDING) - ROUNDING", "+ 0.3)", {"int8": 1}, module="kernels.attention.kernel"),
    Fault("rope_write", "(dim < half)", "(dim <= half)"),
    Fault("rope_write", "first * cos)", "first * sin)", module="kernels.rope.kernel"),
    Fault("span_placement", "is_own = token < num_tokens", "is_own = token <= num_tokens"),
    Fault("span_placement", "tl.load(source_slots + token", "tl.load(target_slots + token"),
    Fault("span_placement", "keys + source + half", "keys + source + half - 1"),
    Fault("span_placement", "bias + half", "bias", {"int8": 1}),
    Fault("span_placement", "tl.div_rn(second, ", "(second * ", {"int8": 1}),
    Fault("span_placement", "first_layer + block_layers, num_layers)", "first_layer + block_layers, num_layers - 1)"),
    Fault("accept", "numbers == best[:, None]", "numbers >= best[:, None] - 1"),
    Fault("accept", "token < end", "token <= end"),
    Fault("accept", "(lane + found_at)", "(lane + found_at + 1)"),
    Fault(
        "accept", "tl.cumsum(weights, axis=0) > target", "tl.cumsum(weights, axis=0) - weights > target", {"draws": 1}
    ),
    Fault("accept", "departure - begin", "departure - begin + 1"),
    Fault("rms_norm", "(place < SIZE)", "(place <= SIZE)"),
    Fault("rms_norm", "(row < num_rows)", "(row <= num_rows)"),
    Fault("rms_norm", "/ SIZE + eps", "/ (SIZE + 1) + eps"),
    Fault("rms_norm", "tl.store(own, rounded, mask=mask)", "pass"),
    Fault(
        "rms_norm",
        "tl.num_programs(0) * ROWS",
        "(tl.num_programs(0) + 1) * ROWS",
        {"num_tokens": 7},
        LOOP | {"ROWS": 1},
    ),
    Fault("fp8_rows", "column < size", "column <= size"),
    Fault("fp8_rows", "column < size", "column < size - 1"),
    Fault("fp8_rows", "0x7FFFF + ((bits", "0 + ((bits"),
    Fault("fp8_rows", "& -0x100000", "& -0x200000"),
    Fault("fp8_rows", "values + row * size", "values + row * (size + 1)"),
    Fault("fp8_rows", "scales + row,", "scales + 0 * row,"),
    Fault("swiglu", "num_tokens, tl.num_programs(0)", "num_tokens, tl.num_programs(0) + 1", {"num_tokens": 17}, LOOP),
    Fault("swiglu", "column < ffn_size", "column <= ffn_size"),
    Fault("swiglu", "column < ffn_size", "column < ffn_size - 1"),
    Fault("swiglu", "tl.load(own + ffn_size", "tl.load(own + ffn_size - 1"),
    Fault("swiglu", "out + token * ffn_size", "out + token * (ffn_size + 1)"),
]


@contextmanager
def planted(fault: Fault, folder: Path) -> Iterator[None]:
    """The op runs a copy of its kernel with the fault in it."""
    source = _path_of(fault.module_name)
    text = source.read_text(encoding="utf-8")
    assert fault.old in text, f"{source.name} of {fault.op} has no {fault.old!r} any more: plant this fault anew"
    copy = folder / source.name
    copy.write_text(text.replace(fault.old, fault.new), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        _load(fault.module_name, copy, patch)
        for name in _importers(fault.module_name):
            _load(name, _path_of(name), patch)
        yield


def _load(name: str, path: Path, patch: pytest.MonkeyPatch) -> None:
    """Put a file in a module's place, for whoever imports it from now on."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    patch.setitem(sys.modules, name, module)
    package, _, last = name.rpartition(".")
    patch.setattr(import_module(package), last, module, raising=False)
    spec.loader.exec_module(module)


def _importers(name: str) -> list[str]:
    """The Triton modules that take something from another one when they are imported."""
    wanted = re.compile(rf"^from {re.escape(name)} import", re.MULTILINE)
    return [
        f"kernels.{path.parent.name}.{path.stem}"
        for path in sorted(PACKAGE.glob("*/kernel.py"))
        if wanted.search(path.read_text(encoding="utf-8"))
    ]


def _path_of(name: str) -> Path:
    return PACKAGE.joinpath(*name.split(".")[1:]).with_suffix(".py")
