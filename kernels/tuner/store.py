"""Stores the winner of each search by card, kernel source and version, and looks it up at launch.

Nothing is measured here, and nothing is read but once for each card: a look-up in a dict.
"""

from __future__ import annotations

import ast
import hashlib
import json
import logging
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import platformdirs
import torch
from filelock import FileLock

from kernels.atomic_file import replace_file
from kernels.op import Op, Shape, Variant
from kernels.tuner.space import Timed, winner_key

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


@dataclass(frozen=True, slots=True)
class Card:
    """One kind of card, and the software that compiles and runs kernels on it."""

    name: str
    driver: str
    torch: str
    triton: str
    shared_bytes: int
    """Shared memory that one block of threads may have."""
    l2_bytes: int


def file_name(card_name: str) -> str:
    """Of the store of a card's winners, one for each kind of card in a folder: 'nvidia-h100-80gb-hbm3.json'."""
    return re.sub(r"[^a-z0-9]+", "-", card_name.lower()).strip("-") + ".json"


def card_of(device: torch.device) -> Card:
    """What is known of a CUDA device."""
    from triton.runtime import driver

    properties = torch.cuda.get_device_properties(device)
    with torch.cuda.device(device):  # which of them 'cuda' is
        index = torch.cuda.current_device()
    return Card(
        name=properties.name,
        driver=_driver_version(),
        torch=torch.__version__,
        triton=triton_version(),
        shared_bytes=driver.active.utils.get_device_properties(index)["max_shared_mem"],
        l2_bytes=properties.L2_cache_size,
    )


def triton_version() -> str:
    """Of the Triton that compiles kernels in this process."""
    import triton

    return str(triton.__version__)


def _driver_version() -> str:
    """torch knows the driver's CUDA version only, so that the tool that comes with every driver is asked."""
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
    """What a time depends on besides the card."""

    source: str
    """`kernels.tuner.store.source_hash` of the op."""
    driver: str
    torch: str
    triton: str

    @classmethod
    def of(cls, card: Card, source: str) -> Versions:
        return cls(source=source, driver=card.driver, torch=card.torch, triton=card.triton)

    def hold_for(self, source: str, triton: str) -> bool:
        """Whether the same variant is still the same program: then what was measured is still true of it."""
        return (self.source, self.triton) == (source, triton)


@dataclass(frozen=True, slots=True)
class Winner:
    """The fastest variant that is right, for shapes of one class of one op in one dtype."""

    op: str
    dtype: str
    shape_class: str
    best: Timed
    default: Timed | None
    """What runs where nothing was tuned; None: it is not right here, or does not launch."""
    runners_up: tuple[Timed, ...]
    shapes: tuple[Shape, ...]
    """The times are of these, one each."""
    outcomes: Mapping[str, int]
    """How many variants were admitted, and how many were not and why."""
    is_complete: bool
    """Whether the whole space was tried, and the finalists as often as they have to be."""
    seed: int
    versions: Versions

    @property
    def key(self) -> str:
        """As `kernels.tuner.space.winner_key`."""
        return f"{self.op} {self.dtype} {self.shape_class}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Winner:
        """Raises KeyError, TypeError or ValueError where `raw` is no winner."""
        fields = dict(raw)
        default = fields.pop("default")
        return cls(
            best=_timed(fields.pop("best")),
            default=None if default is None else _timed(default),
            runners_up=tuple(map(_timed, fields.pop("runners_up"))),
            shapes=tuple(map(_sizes, fields.pop("shapes"))),
            outcomes=_sizes(fields.pop("outcomes")),
            versions=Versions(**fields.pop("versions")),
            **fields,
        )


def _timed(raw: Mapping[str, Any]) -> Timed:
    return Timed(_sizes(raw["variant"]), tuple(map(float, raw["seconds"])), int(raw["num_samples"]))


def _sizes(raw: Mapping[str, Any]) -> dict[str, int]:
    if not all(type(value) is int for value in raw.values()):
        raise ValueError(f"{raw!r} has values that are no whole numbers")
    return dict(raw)


FORMAT = 1


class StoreError(Exception):
    """A file that is no store of this card's winners; the message says which, why, and what to do."""


class Store:
    """One kind of card's winners, in a folder that may have several.

    A file is replaced as a whole: who reads it meanwhile sees the old or the new one. Two tuners take turns.
    """

    def __init__(self, folder: Path, card_name: str) -> None:
        self._card_name = card_name
        self.path = folder / file_name(card_name)
        self._tried_path = self.path.with_suffix(".tried.json")

    def winners(self) -> dict[str, Winner]:
        """By key; none where there is no file. Raises StoreError."""
        return {key: self._winner(key, raw) for key, raw in self._read(self.path).items()}

    def put(self, winner: Winner) -> None:
        """Replace the winner of its key; a complete search's list of what was tried is not needed any more."""
        self._change(self.path, winner.key, winner.to_json(), is_durable=True)
        if winner.is_complete and self._tried_path.exists():
            self._change(self._tried_path, winner.key, None)

    def tried(self, key: str, versions: Versions) -> dict[str, str]:
        """The outcome for each variant that a search which was broken off had tried; empty where it is outdated."""
        raw = self._read(self._tried_path).get(key)
        try:
            if raw is None or not Versions(**raw["versions"]).hold_for(versions.source, versions.triton):
                return {}
            return {str(variant): str(outcome) for variant, outcome in raw["outcomes"].items()}
        except (KeyError, TypeError, AttributeError) as error:
            raise self._foreign(self._tried_path, error) from error

    def put_tried(self, key: str, versions: Versions, outcomes: Mapping[str, str]) -> None:
        raw = {"versions": {name: getattr(versions, name) for name in Versions.__slots__}, "outcomes": dict(outcomes)}
        self._change(self._tried_path, key, raw)

    def _winner(self, key: str, raw: Any) -> Winner:
        try:
            winner = Winner.from_json(raw)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise self._foreign(self.path, error) from error
        if winner.key != key:
            raise self._foreign(self.path, f"{key!r} stands for {winner.key!r}")
        return winner

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise self._foreign(path, error) from error
        match raw:
            case {"format": int(found), "card": str(card), "entries": dict(entries)}:
                if found == FORMAT and card == self._card_name:
                    return entries
                raise self._foreign(path, f"it is of format {found}, for {card}")
        raise self._foreign(path, "it has other fields")

    def _foreign(self, path: Path, why: object) -> StoreError:
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


def default_folder(environ: Mapping[str, str]) -> Path:
    """`kernels` in Hunk's cache folder, which the service finds by the same rules."""
    own = environ.get("HUNK_CACHE")
    if own is not None:
        return Path(own).expanduser().absolute() / "kernels"
    xdg = Path(environ.get("XDG_CACHE_HOME", ""))  # ignored if it is relative, as its specification says
    cache = xdg / "hunk" if xdg.is_absolute() else platformdirs.user_cache_path("hunk", appauthor=False)
    return cache / "kernels"


log = logging.getLogger(__name__)


class Winners:
    """What was tuned for one card: the winners that hold for the kernels and the Triton of this process."""

    def __init__(self, folder: Path, card_name: str, triton: str) -> None:
        self._card_name = card_name
        self._variants = _holding(Store(folder, card_name), triton)
        self._missing: set[str] = set()

    def variant_for(self, op: Op, shape: Shape, dtype: torch.dtype) -> Variant:
        """The winner of the shape's class; where there is none or it cannot run this shape, the op's default."""
        found = self._variants.get(winner_key(op.name, dtype, op.shape_class(shape)))
        if found is not None and found.keys() == op.space.keys() and op.is_valid(found, shape):
            return found
        self._say_once(op.name)
        return op.default(shape)

    def _say_once(self, op_name: str) -> None:
        if op_name not in self._missing:
            self._missing.add(op_name)
            log.info(
                "%s runs by default for shapes that were not tuned on %s; python -m kernels.tune %s does that",
                op_name,
                self._card_name,
                op_name,
            )


def use_folder(folder: Path | None) -> None:
    """Take winners from this folder from now on; None, which is how a process starts: the defaults, everywhere."""
    global _folder
    _folder = folder
    _on.cache_clear()


_folder: Path | None = None


def variant_for(op: Op, shape: Shape, device: torch.device, dtype: torch.dtype = torch.bfloat16) -> Variant:
    """What a wrapper launches its kernel with where it was given no variant."""
    winners = _on(device)
    return op.default(shape) if winners is None else winners.variant_for(op, shape, dtype)


@cache
def _on(device: torch.device) -> Winners | None:
    if _folder is None or device.type != "cuda":
        return None
    return Winners(_folder, torch.cuda.get_device_name(device), triton_version())


def _holding(store: Store, triton: str) -> dict[str, Variant]:
    """By key. A kernel that has changed, or another Triton, makes another program of the same constants."""
    try:
        found = store.winners()
    except StoreError as error:
        log.warning("%s", error)
        return {}
    sources = {op_name: source_hash(op_name) for op_name in {winner.op for winner in found.values()}}
    holding = {
        key: winner.best.variant
        for key, winner in found.items()
        if winner.versions.hold_for(sources[winner.op], triton)
    }
    if len(holding) < len(found):
        num_outdated = len(found) - len(holding)
        log.warning(
            "%d of %d winners in %s were measured with another kernel or Triton: tune again (python -m kernels.tune)",
            num_outdated,
            len(found),
            store.path,
        )
    return holding
