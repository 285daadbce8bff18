"""The benchmark of a card, tried without one: what is counted, how drafts are accepted, what stops a speed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.engine.roofline import Rows, count_kv_token_bytes, count_work
from benchmarks.gpu import bounds as counted
from benchmarks.gpu import engine as gate
from benchmarks.gpu import engine as measuring
from benchmarks.gpu.__main__ import compute_total_tok_s, main, make_engine_rows, render_bounds, render_copied
from benchmarks.gpu.bounds import BUS_BYTES_S, SHAPES, compute_bounds, compute_second_turn_s, draw_parameters
from benchmarks.gpu.card import STATED, Ceilings
from benchmarks.gpu.edits import OWN_EDITS, Edit, Pieces, load_edits
from benchmarks.gpu.engine import ScriptedDecoder, change_middle, draw_ids, measure, write
from engine import decoder as model
from engine.decoder import Decoder
from engine.speculation import MergeDraft
from engine.types import Draft, GenerationRequest, Proposer
from engine.weights import Parameters
from tests.engine.cores import make_core
from tests.engine.tiny import VOCAB_SIZE, tiny_config, tiny_decoder

CEILINGS = Ceilings("a card", 1e9, 1e10)
CPU = torch.device("cpu")
PROMPT = [3, 14, 15, 9, 26, 5, 35, 8, 9, 7, 9, 32, 3, 8, 4, 6]
TEXT = draw_ids(90, VOCAB_SIZE, 5)


class Misremembering:
    """Drafts a text of which some tokens are wrong."""

    def __init__(self, text: Sequence[int], wrong: Sequence[int]) -> None:
        self._text = [(each + 1) % VOCAB_SIZE if at in wrong else each for at, each in enumerate(text)]

    def propose(self, output_ids: Sequence[int], max_tokens: int) -> Draft:
        return Draft.from_tokens(self._text[len(output_ids) :][:max_tokens], hazard=1e-6)


def merge_draft() -> Proposer:
    """Of TEXT: two tokens are substituted in the merge, one is left out of the original."""
    merge = [*TEXT[:20], (TEXT[20] + 1) % VOCAB_SIZE, *TEXT[21:60], (TEXT[60] + 1) % VOCAB_SIZE, *TEXT[61:]]
    return MergeDraft(merges=[merge], original=[*TEXT[:40], *TEXT[41:]], update=TEXT[18:25])


@pytest.mark.parametrize("proposer", [None, Misremembering(TEXT, (4, 50, 51)), merge_draft()])
def test_a_scripted_model_writes_the_script_and_no_other(proposer: Proposer | None) -> None:
    script = ScriptedDecoder(tiny_decoder())
    core = make_core(model=script, max_batched_tokens=64)
    request = GenerationRequest(PROMPT, len(TEXT))
    script.follow(TEXT)
    assert write(core, request, proposer, script).token_ids == tuple(TEXT)
    script.follow(None)
    own = write(core, request, None, script).token_ids
    assert own == write(make_core(model=tiny_decoder()), request).token_ids
    assert own != tuple(TEXT)


@pytest.mark.parametrize("rows_are_free", [False, True])
@pytest.mark.parametrize("kind", ["misremembering", "merge"])
def test_drafts_are_accepted_as_the_model_that_wrote_the_text_accepts_them(kind: str, rows_are_free: bool) -> None:
    """Another model's output, drafted with faults: random weights with a script take the same passes over it."""
    request = GenerationRequest(PROMPT, len(TEXT))
    author = make_core(model=tiny_decoder(), rows_are_free=rows_are_free)
    text = write(author, request).token_ids

    def drafted() -> Proposer:
        if kind == "misremembering":
            return Misremembering(text, (3, 17, 18, 40, 77))
        merge = [*text[:30], (text[30] + 1) % VOCAB_SIZE, *text[31:]]
        return MergeDraft(merges=[merge], original=[*text[:50], *text[55:]], update=text[50:55])

    def run(core: Any, script: ScriptedDecoder | None) -> tuple[tuple[int, ...], list[tuple[int, int]]]:
        written = write(core, request, drafted(), script)
        return written.token_ids, written.passes

    author = make_core(model=tiny_decoder(), rows_are_free=rows_are_free)
    script = ScriptedDecoder(tiny_decoder(seed=1))
    script.follow(text)
    replayed = make_core(model=script, rows_are_free=rows_are_free)
    own, theirs = run(author, None), run(replayed, script)
    assert own == theirs
    assert own[0] == text
    assert any(accepted < drafted for drafted, accepted in own[1]), "nothing was rejected"


def test_the_bounds_are_those_of_the_rows_that_run() -> None:
    config = tiny_config()
    token_bytes = count_kv_token_bytes(config, 2)
    run = count_work(config, [Rows(8192 - 513, 513)])
    moved = (4096 - 513) * token_bytes / BUS_BYTES_S
    assert compute_second_turn_s(config, 8192, "fast", CEILINGS) == pytest.approx(
        moved + max(run.flops / 1e10, run.num_bytes / 1e9)
    )
    times = [compute_second_turn_s(config, 8192, mode, CEILINGS) for mode in ("turbo", "fast", "exact", "cold")]
    assert times == sorted(times)


def test_the_shapes_are_those_of_the_models() -> None:
    for name, numbers in (("1.5b", 1.54e9), ("7b", 7.62e9)):
        config = SHAPES[name]
        with torch.device("meta"):
            parameters = Parameters(config, torch.bfloat16, "meta")
        assert parameters.num_bytes / 2 == pytest.approx(numbers, rel=0.01)


@given(st.text())
def test_pieces_are_the_text(text: str) -> None:
    pieces = Pieces()
    ids = pieces.encode(text)
    assert b"".join(pieces.token_bytes()[each] for each in ids) == text.encode()


def own_edits(pieces: Pieces, limit: int) -> list[Edit]:
    return load_edits(OWN_EDITS, pieces, limit=limit, seed=0)


def test_there_are_edits_with_every_checkout() -> None:
    pieces = Pieces()
    found = own_edits(pieces, 100)
    assert len(found) > 20
    assert {each.group for each in found} >= {"merge right"}
    assert all(each.draft(pieces).propose([], 64).token_ids for each in found)


def test_recorded_answers_and_made_snippets_are_mixed(tmp_path: Path) -> None:
    before = "".join(f"def f{number}():\n    return {number}\n\n\n" for number in range(30))
    after = before.replace("return 12", "return 13")
    made = {"path": "f.py", "original": before, "expected": after, "old_text": "return 12", "new_text": "return 13"}
    answered = {"id": "a", "path": "f.py", "original": "a = 1\n", "update": "a = 2\n", "vendor_output": "a = 2\n"}
    (tmp_path / "cases.jsonl").write_text("".join(json.dumps(each) + "\n" for each in (made, answered)))
    found = load_edits(tmp_path, Pieces(), limit=3, seed=0)
    assert [each.name.split()[-1] == "recorded" for each in found] == [False, False, True]
    assert len(found[0].output) > len(found[-1].output)


def test_the_gate_finds_nothing_where_nothing_is_wrong() -> None:
    assert gate.find_fault(gate_config(), CPU, 3) is None


def test_the_gate_finds_weights_that_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*arguments: Any) -> Parameters:
        *others, read = arguments
        return Parameters(*others, lambda name: read(name) * (1.5 if "down_proj" in name else 1.0))

    monkeypatch.setattr(gate, "Parameters", wrong)
    assert "token by token, it parts from the CPU's output" in (gate.find_fault(gate_config(), CPU, 3) or "")


def test_the_gate_finds_a_fault_of_verify_passes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    real = model.causal_attention

    def wrong(query: torch.Tensor, *others: Any) -> torch.Tensor:
        out = real(query, *others)
        return out.roll(1, 0) if 1 < len(query) < gate.NUM_NEW else out

    monkeypatch.setattr(model, "causal_attention", wrong)
    assert "with drafts, it parts from the CPU's output" in (gate.find_fault(gate_config(), CPU, 3) or "")


def gate_config() -> Any:
    return tiny_config(hidden_size=64, num_heads=4, num_kv_heads=2, head_dim=16, vocab_size=5000, max_positions=4096)


def small(monkeypatch: pytest.MonkeyPatch) -> tuple[Decoder, list[Edit], Pieces]:
    """A model of nothing, and what is measured of it, small enough for any machine."""
    for name, value in (
        ("PROMPTS", (64, 200)),
        ("CONTEXTS", (1024,)),
        ("CONTEXT", 50),
        ("NUM_PLAIN", 5),
        ("SEGMENT", 128),
    ):
        monkeypatch.setattr(measuring, name, value)
    pieces = Pieces()
    found = own_edits(pieces, 2)
    config = tiny_config(vocab_size=5000, max_positions=4096)
    return Decoder(draw_parameters(config, torch.float32, CPU)), found, pieces


def test_everything_is_measured_that_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, own, pieces = small(monkeypatch)
    found = measure(decoder, own, pieces, 1, 10**6)
    assert found.faults == []
    for name, value in (("PROMPTS", (64, 200)), ("CONTEXTS", (1024,))):
        monkeypatch.setattr(counted, name, value)
    assert set(found.figures) | {counted.name_pass(num) for num in counted.PASSES} == set(
        compute_bounds(decoder.config, CEILINGS)
    )
    assert [each.num_tokens for each in found.copied] == [len(each.output) for each in own]
    assert all(sum(accepted + 1 for _, accepted in each.passes) == each.num_tokens for each in found.copied)
    assert (
        min(each.tok_s for each in found.copied)[0]
        <= compute_total_tok_s(found.copied)
        <= max(each.tok_s for each in found.copied)[0]
    )
    lines = render_bounds(decoder.config, CEILINGS, found).split("\n")
    assert not any(line.rstrip(" |").endswith(" -") for line in lines)
    assert "All together" in render_copied(found.copied)
    assert {row.get("figure") for row in make_engine_rows("tiny", decoder.config, CEILINGS, found)} >= set(
        found.figures
    )


def test_an_output_that_is_not_the_recorded_one_has_no_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, own, pieces = small(monkeypatch)
    monkeypatch.setattr(measuring, "CONTEXTS", ())
    monkeypatch.setattr(measuring, "_measure_passes", lambda *_: None)
    monkeypatch.setattr(ScriptedDecoder, "count_by", lambda self, count: None)  # it loses its place
    found = measure(decoder, own[1:], pieces, 1, 0)
    assert found.copied == []
    assert "is not what was recorded: no speed is shown" in found.faults[0]


def test_a_second_turn_that_ran_something_else_has_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, _, pieces = small(monkeypatch)
    monkeypatch.setattr(measuring, "change_middle", lambda ids, size: list(ids))
    found = measure(decoder, [], pieces, 1, 10**6)
    assert any("tokens were run, not" in fault for fault in found.faults)
    assert counted.name_turn(1024, "fast") not in found.figures


def test_a_second_turn_differs_in_its_middle_alone() -> None:
    first = draw_ids(1000, 50, 1)
    second = change_middle(first, 50)
    assert [at for at, (one, other) in enumerate(zip(first, second, strict=True)) if one != other] == list(
        range(500, 564)
    )
    assert len({tuple(draw_ids(20, 50, seed)) for seed in range(-3, 4)}) == 7


def test_without_a_card_it_says_so_and_ends_with_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as end:
        main(["--cases", str(OWN_EDITS)])
    assert end.value.code == 2
    assert "there is no CUDA device" in capsys.readouterr().err


def test_what_is_counted_is_printed_on_any_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "gpu.json"
    main(["--count-only", "--cases", str(OWN_EDITS), "--limit", "2", "--model", "7b", "--json", str(out)])
    printed = capsys.readouterr().out
    assert "| prefill of 2,048 tokens, tok/s " in printed
    assert {row["figure"]: row["bound"] for row in json.loads(out.read_text())["rows"]} == compute_bounds(
        SHAPES["7b"], STATED
    )


def test_what_has_no_rounds_says_nothing() -> None:
    assert render_copied([]) == ""
