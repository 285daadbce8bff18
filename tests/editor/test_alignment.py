"""The aligner of the reader: its cheapest path costs what trying every step costs, on small random snippets."""

from __future__ import annotations

import random
from functools import cache
from itertools import chain

import pytest

from editor.formats import parse
from editor.reader.alignment import Aligner
from editor.reader.candidates import FileLines, LineCandidates, Snippet
from editor.reader.costs import BOUND, ELIDED, GAP, OUTSIDE, CostWeights
from editor.types import Sketch

LINES = (
    "import os",
    "def load(path):",
    "def save(path, data):",
    "    value = path + 1",
    "    value = path + 2",
    "    return value",
    "    if value:",
    "        return None",
    "LIMIT = 10",
    "}",
    "# a comment",
)


def random_texts(seed: int) -> tuple[str, str]:
    """Return a file of up to eight lines, and a snippet: some of its lines, others, and markers."""
    source = random.Random(seed)
    file = [source.choice(LINES) for _ in range(source.randint(1, 8))]
    shown: list[str] = []
    for line in file:
        what = source.random()
        if what < 0.5:
            shown.append(line)
        elif what < 0.7:
            shown.append("# ... existing code ...")
        if source.random() < 0.3:
            shown.append(source.choice(LINES))
    return "\n".join(file) + "\n", "\n".join([*shown, "limit = 1"]) + "\n"


def cheapest_by_trying_all(aligner: Aligner) -> float:
    """Return the least cost of a path by steps that take at most one line of the file that is skipped."""

    @cache
    def cost(at: int, line: int, state: int) -> float:
        if at == aligner.size and line == aligner.num_lines:
            return float(aligner.exits[at, state, line])
        ways = [price + cost(end, below, after) for price, _, end, below, after in moves(at, line, state)]
        return min(ways, default=1e9)

    def moves(at: int, line: int, state: int) -> list[tuple[float, str, int, int, int]]:
        found = list(aligner._list_moves(at, line, state))
        if state in (GAP, OUTSIDE, ELIDED) and line < aligner.num_lines:
            if state != GAP or aligner._mask_marker_scope(at)[line]:
                found.append((float(aligner.costs.skip[state][line]), "skip", at, line + 1, state))
            else:
                price = aligner.weights.leave_scope + float(aligner.costs.skip[OUTSIDE][line])
                found.append((price, "skip", at, line + 1, OUTSIDE))
        return found

    opened = 0.0 if aligner.snippet.items[0].kind == "marker" else aligner.weights.open_start
    return min(cost(0, 0, BOUND), opened + cost(0, 0, ELIDED))


@pytest.mark.parametrize("seed", range(80))
def test_the_best_path_costs_what_trying_every_step_costs(seed: int) -> None:
    text, snippet = random_texts(seed)
    edit = parse(snippet, "lazy", "x.py")
    assert isinstance(edit.changes, Sketch)
    file = FileLines(text, "python")
    shown = Snippet(edit.changes, file, ("Move load and add save.",))
    aligner = Aligner(file, shown, LineCandidates(file, shown), CostWeights())
    paths = aligner.find_best_paths(12, 9.0)
    costs = [path.cost for path in paths]
    assert costs == pytest.approx(sorted(costs))
    assert costs[0] == pytest.approx(cheapest_by_trying_all(aligner))
    for path in paths:
        taken = [range(step.item, step.item_end) for step in path.steps if step.kind not in ("skip", "delete")]
        assert list(chain.from_iterable(taken)) == list(range(len(shown)))
