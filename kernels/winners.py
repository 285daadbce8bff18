"""The fastest constants of kernels, as `hunk tune` has found them: one JSON file for each kind of card.

An engine reads the file once, when it starts, and launches by the op's defaults where the file has nothing that holds.
"""

from __future__ import annotations

import ast
import hashlib
import json
import logging
import re
from collections.abc import Hashable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from math import exp, fsum, log
from pathlib import Path
from typing import Any

import platformdirs
import torch
from filelock import FileLock

from kernels.atomic_file import replace_file
from kernels.op import Op, Shape, Variant

PACKAGE = Path(__file__).parent
FORMAT = 2
MOST_CHOSEN = 4096
"""Shapes whose variant is remembered."""

logger = logging.getLogger(__name__)


class StoreError(Exception):
    """A file holds no winners of its card; the message says which file, why, and what to do."""


@dataclass(frozen=True, slots=True)
class Winner:
    """The fastest correct variant for the shapes of one class of an op in one dtype.

    seconds, default_seconds: of one run at each of `shapes`; default_seconds is None where the default is wrong or does
    not launch. source: hash of the kernel, see `compute_source_hash`. triton: version that compiled it. num_variants,
    num_tried, num_right: how many there are, how many there was time for, and how many of those were right.
    """

    op: str
    dtype: str
    shape_class: str
    variant: Variant
    shapes: tuple[Shape, ...]
    seconds: tuple[float, ...]
    default_seconds: tuple[float, ...] | None
    num_variants: int
    num_tried: int
    num_right: int
    source: str
    triton: str

    @property
    def key(self) -> str:
        """The key of `get_winner_key`."""
        return f"{self.op} {self.dtype} {self.shape_class}"

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Winner:
        """Parse a winner. Raises KeyError, TypeError or ValueError for other data."""
        default = raw["default_seconds"]
        return cls(
            **{
                **raw,
                "variant": _parse_sizes(raw["variant"]),
                "shapes": tuple(map(_parse_sizes, raw["shapes"])),
                "seconds": tuple(map(float, raw["seconds"])),
                "default_seconds": None if default is None else tuple(map(float, default)),
            }
        )


def _parse_sizes(raw: Mapping[str, Any]) -> dict[str, int]:
    if not all(type(value) is int for value in raw.values()):
        raise ValueError(f"{raw!r} has values that are not integers")
    return dict(raw)


def compute_mean_seconds(seconds: tuple[float, ...]) -> float:
    """Return the geometric mean: a tenth less for any shape counts the same."""
    return exp(fsum(map(log, seconds)) / len(seconds))


def get_winner_key(op_name: str, dtype: torch.dtype, shape_class: str) -> str:
    """Return 'paged_attention bfloat16 head_dim=128 group=7 rows=1'."""
    return f"{op_name} {str(dtype).removeprefix('torch.')} {shape_class}"


def get_path(folder: Path, card_name: str) -> Path:
    """Return the file of a card's winners: 'nvidia-h100-80gb-hbm3.json'."""
    return folder / (re.sub(r"[^a-z0-9]+", "-", card_name.lower()).strip("-") + ".json")


def read_winners(folder: Path, card_name: str) -> dict[str, Winner]:
    """Return a card's winners by key, none if there is no file. Raises StoreError for a file of another form."""
    path = get_path(folder, card_name)
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        if (raw["format"], raw["card"]) != (FORMAT, card_name):
            raise ValueError(f"it is of format {raw['format']}, for {raw['card']}")
        return {winner.key: winner for winner in map(Winner.from_json, raw["winners"])}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"{path} holds no winners for {card_name} ({error}); move it away and tune again") from error


def write_winner(folder: Path, card_name: str, winner: Winner) -> None:
    """Replace the winner of its key. Raises StoreError, and then leaves the file as it is, and OSError."""
    path = get_path(folder, card_name)
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        found = read_winners(folder, card_name) | {winner.key: winner}
        content = {"format": FORMAT, "card": card_name, "winners": [asdict(each) for each in found.values()]}
        replace_file(path, [json.dumps(content, indent=1).encode()], sync=True)


def get_default_folder(environ: Mapping[str, str]) -> Path:
    """Return `kernels` in Hunk's cache folder; the service uses the same rules."""
    own = environ.get("HUNK_CACHE")
    if own is not None:
        return Path(own).expanduser().absolute() / "kernels"
    xdg = Path(environ.get("XDG_CACHE_HOME", ""))  # ignored if relative, as specified
    cache_dir = xdg / "hunk" if xdg.is_absolute() else platformdirs.user_cache_path("hunk", appauthor=False)
    return cache_dir / "kernels"


def compute_source_hash(op_name: str, package: Path = PACKAGE) -> str:
    """Hash the op's files with Triton code, and the files of other folders that these import.

    The wrapper and the op's spec are left out: they may change without a change of the kernel.
    """
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(_find_triton_files(op_name, package)):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _find_triton_files(op_name: str, package: Path) -> set[Path]:
    found: set[Path] = set()
    waiting = sorted((package / op_name).glob("*.py"))
    while waiting:
        path = waiting.pop()
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        if path not in found and "triton.jit" in text:
            found.add(path)
            waiting += [package / f"{name.replace('.', '/')}.py" for name in _list_imports(text)]
    return found


def _list_imports(text: str) -> list[str]:
    """Return 'rope.kernel' for `from kernels.rope.kernel import f` and `from kernels.rope import kernel`."""
    names = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    own = f"{__package__}."  # `hunk.kernels` in a wheel
    return [name.removeprefix(own) for name in names if name.startswith(own)]


class Winners:
    """The winners for one card that are valid for this process's kernels and Triton."""

    def __init__(self, folder: Path, card_name: str, triton: str) -> None:
        self._card_name = card_name
        self._variants = _load_valid_variants(folder, card_name, triton)
        self._missing: set[str] = set()
        self._chosen: dict[Hashable, Variant] = {}

    def get_variant(self, op: Op, shape: Shape, dtype: torch.dtype) -> Variant:
        """Return the winner of the shape's class; the op's default if there is none or it cannot run this shape.

        It is chosen once for all layers of a pass, as names of classes and defaults take longer than a launch.
        """
        key = op.name, tuple(shape.items()), dtype
        found = self._chosen.get(key)
        if found is None:
            if len(self._chosen) >= MOST_CHOSEN:
                self._chosen.clear()
            found = self._chosen[key] = self._choose(op, shape, dtype)
        return found

    def _choose(self, op: Op, shape: Shape, dtype: torch.dtype) -> Variant:
        found = self._variants.get(get_winner_key(op.name, dtype, op.shape_class(shape)))
        if found is not None and found.keys() == op.space.keys() and op.is_valid(found, shape):
            return found
        if op.name not in self._missing:
            self._missing.add(op.name)
            logger.info(
                "%s runs by default for shapes that were not tuned on %s; `hunk tune %s` tunes them",
                op.name,
                self._card_name,
                op.name,
            )
        return op.default(shape)


def _load_valid_variants(folder: Path, card_name: str, triton: str) -> dict[str, Variant]:
    """Return the winning variants by key, except those measured with another kernel or Triton version."""
    try:
        found = read_winners(folder, card_name)
    except StoreError as error:
        logger.warning("%s", error)
        return {}
    sources = {op_name: compute_source_hash(op_name) for op_name in {winner.op for winner in found.values()}}
    valid = {
        key: winner.variant
        for key, winner in found.items()
        if (winner.source, winner.triton) == (sources[winner.op], triton)
    }
    if len(valid) < len(found):
        logger.warning(
            "%d of %d winners in %s were measured with another kernel or Triton: tune again (`hunk tune`)",
            len(found) - len(valid),
            len(found),
            get_path(folder, card_name),
        )
    return valid


_folder: Path | None = None


def use_folder(folder: Path | None) -> None:
    """Take winners from this folder from now on; None, the initial state, uses the defaults."""
    global _folder
    _folder = folder
    _load_winners.cache_clear()


def get_variant(op: Op, shape: Shape, device: torch.device, dtype: torch.dtype = torch.bfloat16) -> Variant:
    """Return the variant with which a wrapper launches its kernel."""
    winners = _load_winners(device)
    return op.default(shape) if winners is None else winners.get_variant(op, shape, dtype)


@cache
def _load_winners(device: torch.device) -> Winners | None:
    if _folder is None or device.type != "cuda":
        return None
    return Winners(_folder, torch.cuda.get_device_name(device), get_triton_version())


def get_triton_version() -> str:
    """Return the version of the installed Triton."""
    import triton

    return str(triton.__version__)
