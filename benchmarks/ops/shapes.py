"""Shapes of an op in words, as tables and the command line have them."""

from __future__ import annotations

from collections.abc import Sequence

from kernels.op import Op, Shape

MODEL_SIZES = ("num_layers", "num_heads", "num_kv_heads", "group", "head_dim", "size", "ffn_size", "vocab_size")
"""Sizes that are a model's: shapes that share them stand in one table."""


def model_of(shape: Shape) -> tuple[tuple[str, int], ...]:
    """Those of a shape."""
    return tuple((name, size) for name, size in shape.items() if name in MODEL_SIZES)


def common(shapes: Sequence[Shape]) -> Shape:
    """The sizes that all shapes have alike."""
    first, *others = shapes
    return {name: size for name, size in first.items() if all(each.get(name) == size for each in others)}


def label(shape: Shape, without: Shape | None = None) -> str:
    """`num_seqs=4 num_keys=8192`, but for what stands elsewhere."""
    return " ".join(f"{name}={size}" for name, size in shape.items() if name not in (without or {}))


def chosen(op: Op, asked: Sequence[str]) -> list[Shape]:
    """The op's timed shapes, or those that hold all sizes of one that is asked for (`num_seqs=4,num_keys=8192`).

    A size may be any where all sizes are told. Raises ValueError for what is no shape.
    """
    if not asked:
        return list(op.timed_shapes)
    return [shape for text in asked for shape in _like(op, text)]


def _like(op: Op, text: str) -> list[Shape]:
    wanted = _parsed(text)
    known = set(op.timed_shapes[0])
    if unknown := set(wanted) - known:
        raise ValueError(f"{op.name} has no size {', '.join(sorted(unknown))}; it has {', '.join(sorted(known))}")
    if set(wanted) == known:
        return [wanted]
    found = [shape for shape in op.timed_shapes if wanted.items() <= shape.items()]
    if not found:
        raise ValueError(f"no timed shape of {op.name} has {text}; give all of {', '.join(sorted(known))}")
    return found


def _parsed(text: str) -> dict[str, int]:
    parts = [part.partition("=") for part in text.replace(",", " ").split()]
    try:
        return {name: int(size) for name, _, size in parts}
    except ValueError:
        raise ValueError(f"{text!r} is no shape; write it as num_seqs=4,num_keys=8192") from None
