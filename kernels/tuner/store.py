"""Stores the winner of each search by card, kernel source and version, and looks it up at launch.

A look-up is one access to a dict: files are read once for each card.
"""

from __future__ import annotations

import ast
import hashlib
import json
import logging
import re
import shutil
import subprocess
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

PACKAGE = Path(__file__).parents[1]
NAME = __package__.removesuffix(".tuner")
"""Name of the package: `hunk.kernels` in a wheel, `kernels` in a checkout."""


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
    return [name.removeprefix(f"{NAME}.") for name in names if name.startswith(f"{NAME}.")]


@dataclass(frozen=True, slots=True)
class Card:
    """A kind of card, and the software that compiles and runs kernels on it."""

    name: str
    driver: str
    torch: str
    triton: str
    shared_bytes: int
    """The shared memory that one block of threads may have."""
    l2_bytes: int


def get_file_name(card_name: str) -> str:
    """Return the file name of a card's winners: 'nvidia-h100-80gb-hbm3.json'."""
    return re.sub(r"[^a-z0-9]+", "-", card_name.lower()).strip("-") + ".json"


def describe_card(device: torch.device) -> Card:
    """Return the properties of a CUDA device."""
    from triton.runtime import driver

    properties = torch.cuda.get_device_properties(device)
    with torch.cuda.device(device):  # resolves the index of 'cuda'
        index = torch.cuda.current_device()
    return Card(
        name=properties.name,
        driver=_read_driver_version(),
        torch=torch.__version__,
        triton=get_triton_version(),
        shared_bytes=driver.active.utils.get_device_properties(index)["max_shared_mem"],
        l2_bytes=properties.L2_cache_size,
    )


def get_triton_version() -> str:
    """Return the version of the installed Triton."""
    import triton

    return str(triton.__version__)


def _read_driver_version() -> str:
    """Ask nvidia-smi for the driver's version; torch only knows the driver's CUDA version."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return "unknown"
    asked = subprocess.run(
        [tool, "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True, check=False
    )
    lines = asked.stdout.split()
    return lines[0] if asked.returncode == 0 and lines else "unknown"


@dataclass(frozen=True, slots=True)
class Versions:
    """The software that a measured time depends on."""

    source: str
    """The hash of the kernel, see `compute_source_hash`."""
    driver: str
    torch: str
    triton: str

    @classmethod
    def from_card(cls, card: Card, source: str) -> Versions:
        return cls(source=source, driver=card.driver, torch=card.torch, triton=card.triton)

    def match(self, source: str, triton: str) -> bool:
        """Return whether a variant still compiles to the same program, so that its times are still valid."""
        return (self.source, self.triton) == (source, triton)


def get_winner_key(op_name: str, dtype: torch.dtype, shape_class: str) -> str:
    return f"{op_name} {get_dtype_name(dtype)} {shape_class}"


def get_dtype_name(dtype: torch.dtype) -> str:
    """Return 'bfloat16'."""
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True, slots=True)
class Timing:
    """A variant and the median time of one run, for each shape that was timed."""

    variant: Variant
    seconds: tuple[float, ...]
    num_samples: int

    @property
    def score(self) -> float:
        """The geometric mean over the shapes: a tenth less for any of them counts the same."""
        return exp(fsum(map(log, self.seconds)) / len(self.seconds))


@dataclass(frozen=True, slots=True)
class Winner:
    """The fastest correct variant for shapes of one class of one op in one dtype."""

    op: str
    dtype: str
    shape_class: str
    best: Timing
    default: Timing | None
    """The variant without tuning; None if it is not correct here or does not launch."""
    runners_up: tuple[Timing, ...]
    shapes: tuple[Shape, ...]
    """The shapes of the times, in the same order."""
    outcomes: Mapping[str, int]
    """How many variants had each outcome."""
    is_complete: bool
    """Whether the whole space was tried, and the finalists were timed often enough."""
    seed: int
    versions: Versions

    @property
    def key(self) -> str:
        """The key of `get_winner_key`."""
        return f"{self.op} {self.dtype} {self.shape_class}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Winner:
        """Parse a winner. Raises KeyError, TypeError or ValueError for other data."""
        fields = dict(raw)
        default = fields.pop("default")
        return cls(
            best=_parse_timing(fields.pop("best")),
            default=None if default is None else _parse_timing(default),
            runners_up=tuple(map(_parse_timing, fields.pop("runners_up"))),
            shapes=tuple(map(_parse_sizes, fields.pop("shapes"))),
            outcomes=_parse_sizes(fields.pop("outcomes")),
            versions=Versions(**fields.pop("versions")),
            **fields,
        )


def _parse_timing(raw: Mapping[str, Any]) -> Timing:
    return Timing(_parse_sizes(raw["variant"]), tuple(map(float, raw["seconds"])), int(raw["num_samples"]))


def _parse_sizes(raw: Mapping[str, Any]) -> dict[str, int]:
    if not all(type(value) is int for value in raw.values()):
        raise ValueError(f"{raw!r} has values that are not integers")
    return dict(raw)


FORMAT = 1


class StoreError(Exception):
    """A file is no store of this card's winners; the message says which file, why, and what to do."""


class Store:
    """The winners of one kind of card, in a folder that may hold several stores.

    Files are replaced as a whole, so a reader sees the old or the new one. A lock serialises two tuners.
    """

    def __init__(self, folder: Path, card_name: str) -> None:
        self._card_name = card_name
        self.path = folder / get_file_name(card_name)
        self._outcomes_path = self.path.with_suffix(".tried.json")

    def read_winners(self) -> dict[str, Winner]:
        """Return the winners by key, none if there is no file. Raises StoreError."""
        return {key: self._parse_winner(key, raw) for key, raw in self._read(self.path).items()}

    def write_winner(self, winner: Winner) -> None:
        """Replace the winner of its key; a complete search also deletes its list of outcomes."""
        self._change(self.path, winner.key, winner.to_json(), is_durable=True)
        if winner.is_complete and self._outcomes_path.exists():
            self._change(self._outcomes_path, winner.key, None)

    def read_outcomes(self, key: str, versions: Versions) -> dict[str, str]:
        """Return the outcomes of an interrupted search by variant; empty if they are outdated."""
        raw = self._read(self._outcomes_path).get(key)
        try:
            if raw is None or not Versions(**raw["versions"]).match(versions.source, versions.triton):
                return {}
            return {str(variant): str(outcome) for variant, outcome in raw["outcomes"].items()}
        except (KeyError, TypeError, AttributeError) as error:
            raise self._make_error(self._outcomes_path, error) from error

    def write_outcomes(self, key: str, versions: Versions, outcomes: Mapping[str, str]) -> None:
        raw = {"versions": {name: getattr(versions, name) for name in Versions.__slots__}, "outcomes": dict(outcomes)}
        self._change(self._outcomes_path, key, raw)

    def _parse_winner(self, key: str, raw: Any) -> Winner:
        try:
            winner = Winner.from_json(raw)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise self._make_error(self.path, error) from error
        if winner.key != key:
            raise self._make_error(self.path, f"{key!r} stands for {winner.key!r}")
        return winner

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise self._make_error(path, error) from error
        match raw:
            case {"format": int(found), "card": str(card), "entries": dict(entries)}:
                if found == FORMAT and card == self._card_name:
                    return entries
                raise self._make_error(path, f"it is of format {found}, for {card}")
        raise self._make_error(path, "it has other fields")

    def _make_error(self, path: Path, why: object) -> StoreError:
        return StoreError(f"{path} holds no winners for {self._card_name} ({why}); move it away and tune again")

    def _change(self, path: Path, key: str, raw: dict[str, Any] | None, *, is_durable: bool = False) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):
            entries = self._read(path)
            if raw is None:
                entries.pop(key, None)
            else:
                entries[key] = raw
            content = {"format": FORMAT, "card": self._card_name, "entries": entries}
            # A trial is recorded before and after each variant; only the winner has to survive a power cut.
            replace_file(path, [json.dumps(content, indent=1).encode()], sync=is_durable)


def get_default_folder(environ: Mapping[str, str]) -> Path:
    """Return `kernels` in Hunk's cache folder; the service uses the same rules."""
    own = environ.get("HUNK_CACHE")
    if own is not None:
        return Path(own).expanduser().absolute() / "kernels"
    xdg = Path(environ.get("XDG_CACHE_HOME", ""))  # ignored if relative, as specified
    cache = xdg / "hunk" if xdg.is_absolute() else platformdirs.user_cache_path("hunk", appauthor=False)
    return cache / "kernels"


logger = logging.getLogger(__name__)


MOST_CHOSEN = 4096
"""Shapes whose variant is remembered."""


class Winners:
    """The winners for one card that are valid for this process's kernels and Triton."""

    def __init__(self, folder: Path, card_name: str, triton: str) -> None:
        self._card_name = card_name
        self._variants = _load_valid_variants(Store(folder, card_name), triton)
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
        self._log_once(op.name)
        return op.default(shape)

    def _log_once(self, op_name: str) -> None:
        if op_name not in self._missing:
            self._missing.add(op_name)
            logger.info(
                "%s runs by default for shapes that were not tuned on %s; python -m kernels.tune %s does that",
                op_name,
                self._card_name,
                op_name,
            )


def use_folder(folder: Path | None) -> None:
    """Take winners from this folder from now on; None, the initial state, uses the defaults."""
    global _folder
    _folder = folder
    _load_winners.cache_clear()


_folder: Path | None = None


def get_variant(op: Op, shape: Shape, device: torch.device, dtype: torch.dtype = torch.bfloat16) -> Variant:
    """Return the variant with which a wrapper launches its kernel."""
    winners = _load_winners(device)
    return op.default(shape) if winners is None else winners.get_variant(op, shape, dtype)


@cache
def _load_winners(device: torch.device) -> Winners | None:
    if _folder is None or device.type != "cuda":
        return None
    return Winners(_folder, torch.cuda.get_device_name(device), get_triton_version())


def _load_valid_variants(store: Store, triton: str) -> dict[str, Variant]:
    """Return the winning variants by key, except those measured with another kernel or Triton version."""
    try:
        found = store.read_winners()
    except StoreError as error:
        logger.warning("%s", error)
        return {}
    sources = {op_name: compute_source_hash(op_name) for op_name in {winner.op for winner in found.values()}}
    holding = {
        key: winner.best.variant for key, winner in found.items() if winner.versions.match(sources[winner.op], triton)
    }
    if len(holding) < len(found):
        num_outdated = len(found) - len(holding)
        logger.warning(
            "%d of %d winners in %s were measured with another kernel or Triton: tune again (python -m kernels.tune)",
            num_outdated,
            len(found),
            store.path,
        )
    return holding
