"""What may be run again: ranges of known texts, oracles of a tiny model, and the tables and curves made of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from agent_runtime.models.tokenizer import TokenizerBundle, read_gguf_tokenizer
from benchmarks.reuse.quality import choices, sources
from benchmarks.reuse.quality.layout import LaidOutProbe, lay_out
from benchmarks.reuse.quality.measuring import Plan, rows
from benchmarks.reuse.quality.plots import curves, write_plot
from benchmarks.reuse.quality.probe import Probe
from benchmarks.reuse.quality.rows import NOISE, Row, summary
from benchmarks.reuse.quality.tables import answers_table, choices_table, quality_table
from engine.decoder import Decoder
from engine.reuse import Reuse
from tests.engine.tiny import tiny_decoder
from tests.models import RealModel

BEFORE = '''\
import os


class Reader:
    """Reads."""

    limit = 10

    def first(self, size=LIMIT):
        total = size
        return total


def last(size):
    return size + 1


def user(reader):
    return last(reader.first())
'''
AFTER = BEFORE.replace("total = size", "total = size + limit")


@pytest.fixture(scope="module")
def text(smollm2: RealModel) -> TokenizerBundle:
    tokenizer, metadata = read_gguf_tokenizer(smollm2.gguf)
    return metadata.to_bundle(tokenizer)


@pytest.fixture(scope="module")
def decoder(text: TokenizerBundle) -> Decoder:
    return tiny_decoder(vocab_size=len(text.tokenizer.token_bytes()), max_positions=4096)


@pytest.fixture(scope="module")
def probe(text: TokenizerBundle) -> LaidOutProbe:
    made = Probe("default", "look-up", "r.py", BEFORE, AFTER, "?", "", "limit", "size", ("reader", "first"))
    return lay_out(made, text)


@pytest.fixture(scope="module")
def measured(
    decoder: Decoder, text: TokenizerBundle, tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[Row], Path]:
    progress = tmp_path_factory.mktemp("quality") / "rows.jsonl"
    plan = Plan(("caller", "repeat"), 1, num_tokens=8, choices=True, shares=(0.1, 0.5))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "FEWEST_CHARS", 1500)
        patch.setattr(sources, "MOST_CHARS", 2500)
        return list(rows(decoder, text, plan, progress)), progress


def shown(probe: LaidOutProbe, text: TokenizerBundle, ranges: choices.Ranges) -> list[str]:
    return [text.tokenizer.decode(probe.prompt[first:end]).strip() for first, end in ranges]


def test_the_syntax_around_an_edit(probe: LaidOutProbe, text: TokenizerBundle) -> None:
    found = {name: shown(probe, text, ranges) for name, ranges in choices.syntactic(probe).items()}
    assert found["rest of the line"] == ["total = size + limit"]
    assert found["rest of the definition"] == ["return total"]
    assert found["rest of the outermost definition"] == ["return total"]
    assert found["lines that name a symbol"] == [
        "def first(self, size=LIMIT):",
        "def user(reader):",
        "return last(reader.first())",
    ]
    assert found["span and definitions that name it"][1:] == [
        "def first(self, size=LIMIT):\n        total = size + limit\n        return total",
        "def user(reader):\n    return last(reader.first())",
        "return last(reader.first())",
    ]


def test_every_choice_lies_behind_the_edit_and_in_the_file(probe: LaidOutProbe, decoder: Decoder) -> None:
    found = choices.settings(probe, choices.oracle(decoder, probe), shares=(0.25, 1.0))
    asked = {name: setting(probe) for name, setting in found.items()}
    behind = range(probe.changed[1], probe.tail_start)
    for name, reuse in asked.items():
        own = reuse.recompute[1:-1]  # what is not the file stands around it
        positions = [at for first, end in own for at in range(first, end)]
        assert set(positions) <= set(behind), name
        share = {"25%": round(0.25 * len(behind)), "100%": len(behind)}.get(name.split()[-1])
        assert share is None or len(positions) == share, name
    assert asked["next tokens 100%"] == asked[choices.EVERYTHING]
    assert isinstance(asked[choices.NOTHING], Reuse)


def test_oracles_see_the_question_and_the_change(probe: LaidOutProbe, decoder: Decoder) -> None:
    watching = choices.AttentionDecoder(decoder, len(probe.tail))
    prompt = torch.tensor(probe.prompt)
    hidden = watching.forward(prompt, watching.new_caches(1, len(prompt)))
    assert watching.mass is not None
    assert float(watching.mass.sum()) == pytest.approx(len(probe.tail), rel=1e-4)
    assert torch.equal(hidden, decoder.forward(prompt, decoder.new_caches(1, len(prompt))))
    known = choices.oracle(decoder, probe)
    values = []
    for token_ids in (probe.prompt[: probe.tail_start], probe.first_prompt[: -len(probe.first_tail)]):
        caches = decoder.new_caches(1, len(token_ids))
        decoder.forward(torch.tensor(token_ids), caches)
        values.append(caches[1].values[0, :, len(token_ids) - 1])
    assert known.deviation[-1] == pytest.approx(float((values[0] - values[1]).norm()), rel=1e-4)
    unchanged = lay_probe_unchanged(probe)
    assert choices.oracle(decoder, unchanged).deviation.max() == 0.0


def lay_probe_unchanged(probe: LaidOutProbe) -> LaidOutProbe:
    """The same file in both turns, as if the edit had been a deletion of nothing in its middle."""
    same = LaidOutProbe(probe.probe, probe.head, probe.after, probe.after, probe.first_tail, probe.tail, probe.spans)
    same.__dict__["changed"] = (probe.changed[0], probe.changed[0])
    return same


def test_rows_are_taken_up_where_a_run_was_cut_off(
    measured: tuple[list[Row], Path], decoder: Decoder, text: TokenizerBundle
) -> None:
    found, progress = measured
    assert [row["kind"] for row in found] == ["caller", "repeat"]
    lines = progress.read_text().splitlines()
    assert [json.loads(line) for line in lines] == found
    changed = found[0] | {"file": "told apart"}
    progress.write_text(f"{json.dumps(changed)}\n{lines[1][:40]}")
    again = list(rows(decoder, text, Plan(("caller",), 1, num_tokens=8, choices=True), progress))
    assert again == [changed]


def test_figures_add_up(measured: tuple[list[Row], Path]) -> None:
    found = summary(measured[0])
    all_, nothing = found[choices.EVERYTHING], found[choices.NOTHING]
    assert all_["sensitive"]["effect_recovered"] == pytest.approx(1.0, abs=1e-4)
    assert all_["sensitive"]["share_run_behind"] > 1.0  # the changed tokens, too
    assert all_["sensitive"]["probes"] == 1
    assert all_["insensitive"]["top1"] == all_["insensitive"]["exact_match"] == 1.0
    assert nothing["sensitive"]["effect_recovered"] < 0.9999
    assert nothing["sensitive"]["share_run_behind"] < 0.1
    assert found[NOISE]["sensitive"]["kl_max"] < 1e-6
    assert "effect_recovered" not in nothing["insensitive"]
    assert nothing["caller"]["probes"] == 1


def test_tables_and_curves_hold_the_figures(measured: tuple[list[Row], Path], tmp_path: Path) -> None:
    found = summary(measured[0])
    lines = quality_table(found, [choices.NOTHING]).splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:]] == [choices.NOTHING] * 3 + [NOISE] * 3
    by_choice = choices_table(found, ["caller"]).splitlines()
    assert len(by_choice) == len(found) - 1 + 2
    assert "caller" in answers_table(found, choices.NOTHING, ["caller", "deleted"])
    points = curves(found, "sensitive")
    assert len(points["next tokens"]) == 2
    assert points["next tokens"] == sorted(points["next tokens"])
    assert write_plot(found, ["sensitive", "caller"], tmp_path, "tiny").stat().st_size > 10_000


def test_a_right_answer_of_a_setting_counts_for_it_alone() -> None:
    own: dict[str, Any] = {"kl": [0.5, 0.0], "same_top": [False, True], "num_run": 10, "num_file": 4}
    row: Row = {
        "kind": "caller",
        "class": "conclusion",
        "right": "a",
        "stale": "b",
        "stale_kl": [1.0, 1.0],
        "noise": None,
    }
    row |= {"prompt_tokens": 100, "tokens_behind": 40, "verdict": "right"}
    first = row | {"settings": {"fast": own | {"verdict": "stale"}}}
    second = row | {"settings": {"fast": own | {"verdict": "right"}}, "verdict": "other"}
    found = summary([first, second])["fast"]
    assert found["sensitive"]["effect_recovered"] == 0.75
    assert found["sensitive"]["stale_rate"] == 0.5
    assert found["sensitive"]["stale_rate_full"] == 0.0
    assert found["sensitive"]["right_rate_full"] == 0.5
    assert found["sensitive"]["share_run"] == 0.1
    assert found["answered"]["probes"] == 1
