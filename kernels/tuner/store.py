"""The file of a card's winners, and the one of searches that are not finished."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import platformdirs
from filelock import FileLock

from kernels.tuning.card import file_name
from kernels.tuning.record import Versions, Winner

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
            _replace(path, {"format": FORMAT, "card": self._card_name, "entries": entries}, is_durable)


def default_folder(environ: Mapping[str, str]) -> Path:
    """`kernels` in Hunk's cache folder, which the service finds by the same rules."""
    own = environ.get("HUNK_CACHE")
    if own is not None:
        return Path(own).expanduser().absolute() / "kernels"
    xdg = Path(environ.get("XDG_CACHE_HOME", ""))  # ignored if it is relative, as its specification says
    cache = xdg / "hunk" if xdg.is_absolute() else platformdirs.user_cache_path("hunk", appauthor=False)
    return cache / "kernels"


def _replace(path: Path, raw: dict[str, Any], is_durable: bool) -> None:
    """Durable: there after the power failed, too. What is replaced twice for each variant need not be."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".new")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(raw, file, indent=1)
            if is_durable:
                file.flush()
                os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
