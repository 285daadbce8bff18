"""What a search is going to try, and what searches have found, as text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from kernels.op import Op, Variant
from kernels.tuning.halving import Timed
from kernels.tuning.record import Winner
from kernels.tuning.source import source_hash
from kernels.tuning.space import CountsSharedMemory, Target, declared, valid
from kernels.tuning.store import Store, StoreError


def describe_space(op: Op, targets: Sequence[Target]) -> str:
    """How many variants are declared, and how many of these can run each target's shapes."""
    lines = [f"{op.name}: {len(declared(op.space))} variants are declared"]
    lines += [f"  {name}: {', '.join(map(str, values))}" for name, values in op.space.items()]
    for target in targets:
        lines.append(f"{target.key}: {len(valid(target))} valid")
        lines += [f"  {_named(shape)}: by default {_named(op.default(shape))}" for shape in target.shapes]
    if isinstance(op, CountsSharedMemory):
        lines.append("A card whose shared memory is too small for some of them has fewer.")
    return "\n".join(lines)


def describe_winner(winner: Winner) -> str:
    """The winner with its times beside the default's."""
    lines = [f"{winner.key}: {_timed(winner.best)}{'' if winner.is_complete else ', the time was over before the end'}"]
    if winner.default is None:
        lines.append("  the default is not right here, or does not launch")
    else:
        lines.append(
            f"  default {_timed(winner.default)}: {winner.default.score / winner.best.score:.2f} times as long"
        )
    counts = ", ".join(f"{count} {outcome}" for outcome, count in winner.outcomes.items())
    return "\n".join([*lines, f"  variants: {counts}"])


def list_store(folder: Path) -> str:
    """All winners of a folder, by card; those of a kernel that has changed since say so."""
    lines = []
    for path in sorted(folder.glob("*.json")):
        if path.name.endswith(".tried.json"):
            continue
        try:
            found = Store(folder, json.loads(path.read_text(encoding="utf-8"))["card"]).winners()
        except (StoreError, OSError, ValueError, KeyError, TypeError) as error:
            lines.append(f"{path}: not read ({error})")
            continue
        lines.append(str(path))
        for winner in found.values():
            is_old = winner.versions.source != source_hash(winner.op)
            lines.append(describe_winner(winner) + ("\n  the kernel has changed since: not used" if is_old else ""))
    return "\n".join(lines) or f"nothing was tuned yet: {folder} has no winners"


def _timed(timed: Timed) -> str:
    micros = ", ".join(f"{each * 1e6:.1f}" for each in timed.seconds)
    return f"{micros} µs ({_named(timed.variant)}; {timed.num_samples} samples)"


def _named(sizes: Variant) -> str:
    return " ".join(f"{name}={size}" for name, size in sizes.items())
