"""Labelled readings, the weights that are fitted to them, and the confidence of an answer."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks.cases import Case
from benchmarks.scoring import is_same_but_blank_lines
from editor import codec
from editor.errors import EditorError
from editor.formats import parse
from editor.grammars import find_language
from editor.reader.reader import group_by_solid_lines
from editor.types import ParsedEdit

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


class Reading(Protocol):
    """One way to read a snippet: the text that comes of it, and its features."""

    @property
    def text(self) -> str: ...

    @property
    def features(self) -> Sequence[float]:
        """As many numbers as there are names of features."""
        ...


Read = Callable[[str, ParsedEdit, str | None, tuple[str, ...]], Sequence[Reading]]
"""Returns all readings of an edit of a text, before any order: text, edit, language, the instruction."""


@dataclass(frozen=True)
class Labelled:
    """One case with its readings: `features` a row each, `exact` and `modulo` (blank lines) which of them are right.

    Readings of the same number in `groups` differ in blank lines only.
    """

    id: str
    repo: str
    path: str
    style: str
    made: bool
    features: Floats
    exact: Bools
    modulo: Bools
    groups: Ints
    ms: float

    @property
    def group(self) -> str:
        """What must not be in two folds: a file, whatever folder it moved to."""
        return f"{self.repo}/{self.path.rpartition('/')[2]}"


def label_cases(cases: Iterable[Case], read: Read, num_features: int, cache: Path | None) -> Iterator[Labelled]:
    """Yield the cases with their readings; `cache` is a file that holds those read before, and gets the others.

    The caller names the cache after all that the readings depend on (see `version_of`).
    """
    known = _read_cache(cache) if cache is not None else {}
    for case in cases:
        key = _hash_case(case)
        found = known.get(key)
        if found is None:
            found = _read(case, read)
            if cache is not None:
                with cache.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"key": key, **found}) + "\n")
        yield Labelled(
            id=case.id,
            repo=case.repo,
            path=case.path,
            style=case.style,
            made=case.shape == "made",
            features=np.array(found["features"], dtype=np.float64).reshape(-1, num_features),
            exact=np.array(found["exact"], dtype=np.bool_),
            modulo=np.array(found["modulo"], dtype=np.bool_),
            groups=np.array(found["groups"], dtype=np.int64),
            ms=found["ms"],
        )


def hash_folders(*folders: Path) -> str:
    """Return a hash of all Python and JSON files below some folders: readings of other code or weights are others."""
    digest = sha256()
    for folder in folders:
        for file in sorted([*folder.rglob("*.py"), *folder.rglob("*.json")]):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _read(case: Case, read: Read) -> dict[str, Any]:
    source = codec.decode(case.original.encode())
    expected = codec.decode(case.expected.encode()).text
    started = time.perf_counter()
    try:
        found = read(source.text, parse(case.edit, "lazy", case.path), find_language(case.path), (case.instruction,))
    except EditorError:
        found = ()
    return {
        "ms": round((time.perf_counter() - started) * 1e3, 2),
        "features": [[round(float(value), 5) for value in one.features] for one in found],
        "exact": [one.text == expected for one in found],
        "modulo": [is_same_but_blank_lines(one.text, expected) for one in found],
        "groups": group_by_solid_lines([one.text for one in found]),
    }


def _hash_case(case: Case) -> str:
    return sha256(
        "\0".join((case.path, case.original, case.edit, case.expected, case.instruction)).encode()
    ).hexdigest()


def _read_cache(cache: Path) -> dict[str, dict[str, Any]]:
    if not cache.exists():
        return {}
    with cache.open(encoding="utf-8") as file:
        return {row.pop("key"): row for row in map(json.loads, file)}


_BLANK_SHARE = 0.15
"""What a reading with other blank lines than expected counts where an exact one is among them."""
_MEMORY = 12


@dataclass(frozen=True)
class Order:
    """A weight for each feature, and the score of "none of these"."""

    weights: Floats
    none: float

    def scores(self, features: Floats) -> Floats:
        """Return the score of each reading."""
        return features @ self.weights

    def probabilities(self, features: Floats) -> Floats:
        """Return the probability of each reading; what they lack of 1 is that of none."""
        scores = self.scores(features)
        top = max(float(scores.max(initial=self.none)), self.none)
        powers = np.exp(scores - top)
        return np.asarray(powers / (powers.sum() + np.exp(self.none - top)), dtype=np.float64)


@dataclass(frozen=True)
class _Batch:
    """All cases in one array: a last row of each is "none of these", whose only feature is the bias, the last one."""

    features: Floats
    mask: Floats
    right: Floats
    weight: Floats


def fit_order(cases: Sequence[Labelled], l2: float, made_weight: float = 1.0, steps: int = 200) -> Order:
    """Fit the weights on cases; a made one counts `made_weight`. `l2` holds the weights of scaled features small.

    The readings that are right share the probability. Cases without readings say nothing about the order.
    """
    some = [case for case in cases if len(case.features)]
    scale = np.concatenate([case.features for case in some]).std(axis=0) + 1e-6
    batch = _make_batch(some, scale, made_weight)
    held = np.full(batch.features.shape[2], l2)
    held[-1] = 0.0
    found = minimise(lambda w: _compute_loss(w, batch, held), np.zeros(batch.features.shape[2]), steps)
    return Order(found[:-1] / scale, float(found[-1]))


def minimise(loss: Callable[[Floats], tuple[float, Floats]], start: Floats, steps: int) -> Floats:
    """Return where a smooth function (value and gradient) is small, by L-BFGS with a search for enough descent."""
    at, (value, slope) = start, loss(start)
    pairs: deque[tuple[Floats, Floats]] = deque(maxlen=_MEMORY)
    for _ in range(steps):
        way = _find_direction(slope, pairs)
        length = 1.0 if pairs else min(1.0, 1.0 / (float(np.abs(slope).sum()) + 1e-12))
        descent = float(slope @ way)
        while True:
            there = at + length * way
            value_there, slope_there = loss(there)
            if value_there <= value + 1e-4 * length * descent or length < 1e-10:
                break
            length /= 2
        step, turn = there - at, slope_there - slope
        if float(step @ turn) > 1e-12:
            pairs.append((step, turn))
        done = value - value_there < 1e-9 * max(1.0, abs(value))
        at, value, slope = there, value_there, slope_there
        if done:
            break
    return at


def _find_direction(slope: Floats, pairs: Sequence[tuple[Floats, Floats]]) -> Floats:
    way = -slope
    shares = []
    for step, turn in reversed(pairs):
        share = float(step @ way) / float(step @ turn)
        shares.append(share)
        way = way - share * turn
    if pairs:
        step, turn = pairs[-1]
        way = way * (float(step @ turn) / float(turn @ turn))
    for (step, turn), share in zip(pairs, reversed(shares), strict=True):
        way = way + step * (share - float(turn @ way) / float(step @ turn))
    return way


def _make_batch(cases: Sequence[Labelled], scale: Floats, made_weight: float) -> _Batch:
    most = max(len(case.features) for case in cases) + 1
    features = np.zeros((len(cases), most, len(scale) + 1))
    mask = np.full((len(cases), most), -1e9)
    right = np.zeros((len(cases), most))
    for row, case in enumerate(cases):
        num = len(case.features)
        features[row, :num, :-1] = case.features / scale
        features[row, num, -1] = 1.0
        mask[row, : num + 1] = 0.0
        right[row, : num + 1] = _make_targets(case)
    weight = np.array([made_weight if case.made else 1.0 for case in cases])
    return _Batch(features, mask, right, weight / weight.sum())


def _make_targets(case: Labelled) -> Floats:
    """Return the target share of each reading, and "none of these" after them."""
    if case.exact.any():
        worth = np.where(case.exact, 1.0, np.where(case.modulo, _BLANK_SHARE, 0.0))
    else:
        worth = case.modulo.astype(np.float64)
    return np.append(worth, 0.0 if worth.any() else 1.0)


def _compute_loss(weights: Floats, batch: _Batch, held: Floats) -> tuple[float, Floats]:
    scores = batch.features @ weights + batch.mask
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    all_of_them = powers / powers.sum(axis=1, keepdims=True)
    right = powers * batch.right
    mass = right.sum(axis=1, keepdims=True) + 1e-300
    lost = np.log(powers.sum(axis=1)) - np.log(mass[:, 0])
    error = (all_of_them - right / mass) * batch.weight[:, None]
    slope = np.einsum("nk,nkf->f", error, batch.features) + held * weights
    return float(batch.weight @ lost + 0.5 * (held * weights) @ weights), np.asarray(slope, dtype=np.float64)


_FEWEST = 20
"""So many cases at least are after a point of the line."""


@dataclass(frozen=True)
class Answer:
    """The first reading of a held-out case: its probability, and whether it is right exactly and modulo blank lines.

    `allowed` says what an answer with its features may be, "certain" and "likely" among it.
    """

    probability: float
    exact: bool
    modulo: bool
    allowed: tuple[str, ...] = ("certain", "likely")


Line = list[tuple[float, float]]
"""Points (probability, share right), rising in both; between them it is straight."""


def calibrate(answers: Sequence[Answer]) -> Line:
    """Return the share right as a monotone function of the probability (isotonic: neighbours that fall are pooled).

    Each point stands for `_FEWEST` cases or more, as their mean probability and (right + 1/2) / (cases + 1).
    """
    ordered = sorted(answers, key=lambda one: one.probability)
    pools = [
        [float(len(some)), sum(one.probability for one in some), float(sum(one.modulo for one in some))]
        for some in (ordered[at : at + _FEWEST] for at in range(0, len(ordered), _FEWEST))
    ]
    if len(pools) > 1 and pools[-1][0] < _FEWEST:
        last = pools.pop()
        pools[-1] = [a + b for a, b in zip(pools[-1], last, strict=True)]
    merged: list[list[float]] = []
    for pool in pools:
        merged.append(pool)
        while len(merged) > 1 and _compute_share(merged[-2]) >= _compute_share(merged[-1]):
            last = merged.pop()
            merged[-1] = [a + b for a, b in zip(merged[-1], last, strict=True)]
    return [(round(total / num, 6), round(_compute_share((num, total, right)), 6)) for num, total, right in merged]


def compute_confidence(probability: float, line: Line) -> float:
    """Return the calibrated confidence; beyond the ends of the line it is that of the end."""
    return float(np.interp(probability, [x for x, _ in line], [y for _, y in line]))


def find_bar(answers: Sequence[Answer], most_wrong: float) -> float:
    """Return the lowest probability above which no more than this share is wrong modulo blank lines; 2 where none is.

    It is the share of all answered at that bar.
    """
    ordered = sorted(answers, key=lambda one: -one.probability)
    wrong = np.cumsum([not one.modulo for one in ordered])
    good = np.flatnonzero(wrong <= most_wrong * np.arange(1, len(ordered) + 1))
    ends = [at for at in good if at + 1 == len(ordered) or ordered[at + 1].probability < ordered[at].probability]
    return ordered[ends[-1]].probability if ends else 2.0


def bin_answers(answers: Sequence[Answer], probabilities: Floats, num_bins: int = 10) -> list[dict[str, float]]:
    """Return bins of as many answers each: mean confidence, share right modulo blank lines, and how many they are."""
    order = np.argsort(probabilities, kind="stable")
    right = np.array([one.modulo for one in answers], dtype=np.float64)
    return [
        {
            "n": len(some),
            "confidence": round(float(probabilities[some].mean()), 4),
            "right": round(float(right[some].mean()), 4),
        }
        for some in np.array_split(order, num_bins)
        if len(some)
    ]


def _compute_share(pool: Sequence[float]) -> float:
    num, _, right = pool
    return (right + 0.5) / (num + 1)
