"""The copy contest from processes to tables, with contestants that answer at once and with our engine; its cases."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from agent_runtime.apply.pipeline import Applier
from agent_runtime.llm.merger import ModelMerger
from agent_runtime.models.loader import LoadedModel
from agent_runtime.models.tokenizer import read_gguf_tokenizer
from agent_runtime.types import ApplyRequest
from benchmarks.copy import contest
from benchmarks.copy.cases import CHOICES, GOAL, CopyCase, draw_cases, list_cells
from benchmarks.copy.contest import (
    OWN,
    PLAIN,
    Contest,
    Limits,
    Outcome,
    Speed,
    Task,
    compare_lines,
    cut_pieces,
    measure_after_first,
    measure_cached,
    write,
)
from benchmarks.copy.ours import CopyOurs
from benchmarks.copy.report import make_rows, render_tables, summarise
from benchmarks.peers.contest import CHECKOUT, Entrants
from benchmarks.peers.environments import PEERS, Peer
from benchmarks.peers.protocol import Answer, Arrival, Contestant, Job
from benchmarks.snippets import STYLES, Pair
from engine.core import EngineCore
from engine.engine import Engine
from engine.engine_config import EngineConfig
from engine.scheduler import SchedulerConfig
from tests.engine.tiny import tiny_config, tiny_decoder
from tests.models import RealModel

SCRIPT = """
import sys
from dataclasses import asdict
from benchmarks.peers.protocol import Job, Recorder
from benchmarks.peers.protocol import peak_bytes, serve, take_stdout

# The output counts up from the prompt's last token. A pass takes `pace` seconds and gives `size` tokens with drafts.
pace, drafted, shift, abilities = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4].split()

def run(raw):
    job, now = Job.from_json(raw), 0.0
    size = 1 if not job.speculation else job.speculation.get("num_tokens", drafted)
    recorder = Recorder(job, now)
    if job.speculation.get("num_tokens") == 13:
        sys.exit("13 is too many")
    for number, arrival in recorder.due(now):
        ids = [arrival.prompt_ids[-1] + 1 + at + (shift if at > 3 else 0) for at in range(arrival.num_new)]
        while ids:
            now += pace
            recorder.tokens(number, ids[:size], now)
            del ids[:size]
    return [asdict(answer) for answer in recorder.answers()]

def prepare(case):
    if case["name"].startswith("3000"):
        return {"too_large": "it does not fit"}
    return {"prompt_ids": [5, 9], "expected_tokens": 40, "prepare_seconds": 0.5}

def reference(asked):
    if asked["case"] == "100x1":
        return {"gave_up": True}
    return {"token_ids": list(range(10, 50)), "text": "a\\nc\\n", "finish_reason": "stop"}

serve(take_stdout(), {
    "run": run,
    "prepare": prepare,
    "reference": reference,
    "chat": lambda asked: {"prompt_ids": [7]},
    "margin": lambda asked: 0.1 * abs(asked["first"] - asked["second"]),
    "peak_bytes": peak_bytes,
}, {"version": "fake 1", "abilities": abilities})
"""

PEER_SETTINGS = {"lookup 4": {"num_tokens": 4}, "lookup 8": {"num_tokens": 8}}


def fake(name: str, pace: float, *, drafted: int = 20, shift: int = 0, abilities: str = "prefix") -> Contestant:
    command = [sys.executable, "-c", SCRIPT, str(pace), str(drafted), str(shift), abilities]
    return Contestant(name, command, CHECKOUT, {"PYTHONPATH": str(CHECKOUT)})


def case(name: str, num_lines: int = 300) -> CopyCase:
    return CopyCase(name, "a.py", "a\n" * num_lines, "a\nb\n", "markers", "b")


def limits(**changes: Any) -> Limits:
    found: dict[str, Any] = {"plain_tokens": 9, "peer_tokens": 12, "rounds": 2, "minutes": 5.0}
    return Limits(**{**found, "fresh": True, **changes})


@pytest.fixture(scope="module")
def outcome() -> Iterator[Outcome]:
    """Ours; a peer half as quick that caches no prompts and parts at near-ties; one that fails as it drafts."""
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setattr(contest, "MOST_LINES", {"near": 1000, "brittle": 1000})
        made = {
            name: Peer(name, "some.module", speculations=MappingProxyType(settings))
            for name, settings in {"near": PEER_SETTINGS, "brittle": {"lookup 13": {"num_tokens": 13}}}.items()
        }
        patch.setattr(contest, "PEERS", made)
        ours, machine, near, brittle = (
            stack.enter_context(one)
            for one in (
                fake("hunk", 0.25),
                fake("machine", 1.0),
                fake("near", 0.5, shift=2, abilities=""),
                fake("brittle", 0.5),
            )
        )
        entrants = Entrants(Path(), tiny_config(), machine, ours, (near, brittle))
        cells = [[case(GOAL)], [case("100x1"), case("100x1")], [case("300x3")], [case("3000x1", 3000)]]
        yield Contest(entrants, limits(), lambda ids: "".join(f"{token}\n" for token in ids)).hold(cells)


def row_of(outcome: Outcome, name: str) -> dict[str, Any]:
    return next(row for row in make_rows(outcome) if row["case"] == name)


def test_a_row_tells_how_much_faster_drafts_make_it_than_plain_decoding_and_the_best_peer(outcome: Outcome) -> None:
    row = row_of(outcome, GOAL)
    assert row["output_tokens"] == 40
    assert row["forwards"] == 1  # two passes of 20 tokens; the one that ends the prefill is not counted
    assert row["tok_s"] == 80.0  # 40 tokens in 2 passes of 0.25 s
    assert row["plain_tok_s"] == 4.0
    assert row["ratio_plain"] == 20.0
    assert row["plain_seconds"] == 10.0  # nothing but the tokens: the prompt takes no time here
    assert row["best_peer"] == "near"
    assert row["ratio_best_peer"] == 80.0 / 16.0  # 8 tokens in 0.5 s


def test_a_peer_runs_at_the_best_of_its_settings(outcome: Outcome) -> None:
    assert outcome.settings["near"] == [("lookup 8", 16.0), ("lookup 4", 8.0)]
    peer = row_of(outcome, GOAL)["peers"]["near"]
    assert peer["setting"] == "lookup 8"
    assert peer["tok_s"] == 16.0
    assert peer["plain_tok_s"] == 2.0
    assert peer["tokens_a_pass"] == 8.0
    assert peer["cold_seconds"] == 0.5 + 40 / 16.0


def test_where_a_peers_output_differs_is_told(outcome: Outcome) -> None:
    peer = row_of(outcome, GOAL)["peers"]["near"]
    assert peer[OWN]["leading_tokens_equal"] == 4
    assert peer[OWN]["pieces"] == 1
    assert peer[OWN]["pieces_parted_at_near_ties"] == 1  # the second token is 0.2 less likely
    assert peer[OWN]["equal_lines"] == pytest.approx(39 / 41)  # two are left out, two come behind
    assert peer[PLAIN]["pieces"] == 3
    assert peer[PLAIN]["pieces_equal"] == 3  # of three tokens each


def test_peers_take_part_in_cases_of_one_hunk_only(outcome: Outcome) -> None:
    assert row_of(outcome, "300x3")["peers"] == {}
    assert row_of(outcome, "300x3")["ratio_best_peer"] is None


def test_a_peer_that_fails_is_named_and_left_out(outcome: Outcome) -> None:
    assert "13 is too many" in outcome.left_out["brittle"]
    assert "brittle was left out: brittle ended with status 1" in render_tables(outcome)
    assert set(row_of(outcome, GOAL)["peers"]) == {"near"}


def test_a_file_that_does_not_fit_or_is_not_copied_is_named(outcome: Outcome) -> None:
    assert row_of(outcome, "3000x1")["not_measured"] == "it does not fit"
    assert row_of(outcome, "100x1")["not_measured"] == "the model copied none of 2 files"
    assert "3000x1: not copied whole: it does not fit" in render_tables(outcome)


def test_what_is_written_freshly_is_compared_in_pairs(outcome: Outcome) -> None:
    row = row_of(outcome, "fresh")
    assert row["tok_s"] == pytest.approx(128 / (7 * 0.25))  # passes of 20 tokens
    assert row["ratio_plain"] == pytest.approx(128 / 7)


def test_the_summary_has_the_keys_of_the_interface_and_is_json(outcome: Outcome) -> None:
    found = json.loads(json.dumps(summarise("some-model", outcome)))
    assert found["case"] == GOAL
    assert {"tok_s", "plain_tok_s", "ratio_plain", "ratio_best_peer", "forwards_mean"} <= set(found)
    assert found["forwards_mean"] == 1.0
    assert found["num_rounds"] == 2


def test_no_speed_is_told_where_drafts_changed_the_output() -> None:
    """Ours writes something else with drafts: by more than a near-tie."""
    with fake("hunk", 0.25) as ours, fake("machine", 1.0) as machine, pytest.MonkeyPatch.context() as patch:
        run = ours.run

        def run_wrongly(job: Job) -> list[Answer]:
            found = run(job)
            if not job.speculation:
                return found
            return [Answer(one.arrived, tuple(token + 20 for token in one.token_ids), one.times) for one in found]

        patch.setattr(ours, "run", run_wrongly)
        held = Contest(Entrants(Path(), tiny_config(), machine, ours, ()), limits(rounds=1), lambda ids: "")
        outcome = held.hold([[case(GOAL)]])
    row = row_of(outcome, GOAL)
    assert row["tok_s"] is None
    assert row["ratio_plain"] is None
    assert "is not our plain output" in row["parted"]
    assert row_of(outcome, "fresh")["tok_s"] is None
    assert f"{GOAL}: no speed is shown: the drafted output is not our plain output" in render_tables(outcome)
    json.dumps(summarise("some-model", outcome))


def test_no_round_begins_when_the_time_is_over() -> None:
    with fake("hunk", 0.25) as ours, fake("machine", 1.0) as machine:
        entrants = Entrants(Path(), tiny_config(), machine, ours, ())
        held = Contest(entrants, limits(minutes=0.0, rounds=3, fresh=False), lambda ids: "")
        assert held.hold([[case(GOAL)]]).num_rounds == 1


@pytest.mark.parametrize(
    ("num_tokens", "budget", "expected"),
    [
        (10, 12, [(0, 10)]),
        (12, 12, [(0, 12)]),
        (100, 12, [(0, 4), (48, 52), (96, 100)]),
        (6, 1, [(0, 6)]),
        (7, 1, [(0, 2), (2, 4), (5, 7)]),
    ],
)
def test_long_outputs_are_written_in_three_pieces(
    num_tokens: int, budget: int, expected: list[tuple[int, int]]
) -> None:
    assert cut_pieces(num_tokens, budget) == expected


@dataclass
class Noting:
    """Writes two tokens a pass, the first pass in 2 s and the others in 1 s; knows what it was asked."""

    abilities: frozenset[str]
    asked: list[tuple[tuple[int, ...], int]] = field(default_factory=list)

    def run(self, job: Job) -> list[Answer]:
        (wanted,) = job.arrivals
        self.asked.append((wanted.prompt_ids, wanted.num_new))
        times = tuple(3.0 + at // 2 for at in range(wanted.num_new))
        return [Answer(1.0, wanted.prompt_ids[:1] * wanted.num_new, times)]


def test_each_piece_is_asked_for_behind_what_stands_before_it_and_timed_from_its_first_pass_on() -> None:
    noting = Noting(frozenset({"prefix"}))
    found = write(noting, Task("x", (1, 2), tuple(range(10, 25))), "s", {}, 12)  # type: ignore[arg-type]
    assert noting.asked == [((1, 2), 4), ((1, 2, *range(10, 15)), 4), ((1, 2, *range(10, 21)), 4)]
    assert found.speed == Speed(6, 3.0, 3)


def test_a_whole_output_is_timed_from_its_request_with_the_prompt_cached() -> None:
    noting = Noting(frozenset({"prefix"}))
    found = write(noting, Task("x", (1, 2), (10, 11, 12)), "s", {}, 12)  # type: ignore[arg-type]
    assert noting.asked == [((1, 2), 1), ((1, 2), 3)]
    assert found.speed == Speed(3, 3.0, 2)
    without = Noting(frozenset())
    found = write(without, Task("x", (1, 2), (10, 11, 12)), "s", {}, 12)  # type: ignore[arg-type]
    assert without.asked == [((1, 2), 3)]
    assert found.speed == Speed(1, 1.0, 1)


def test_one_that_caches_no_prompts_is_timed_from_its_first_pass_on() -> None:
    answer = Answer(1.0, (1, 2, 3, 4, 5), (4.0, 4.0, 5.0, 6.0, 6.0))
    assert measure_cached(answer) == Speed(5, 5.0, 3)
    assert measure_after_first(answer) == Speed(3, 2.0, 2)
    assert measure_after_first(Answer(1.0, (1, 2), (4.0, 4.0))) == Speed(2, 3.0, 1)


def test_equal_lines_are_those_in_common_in_order() -> None:
    assert compare_lines(["a", "b", "c"], ["a", "x", "c"]) == pytest.approx(2 / 3)
    assert compare_lines(["a"], ["a"]) == 1.0


def test_the_goals_case_comes_first_and_cells_are_chosen_by_name() -> None:
    assert list_cells()[0] == (300, 1)
    assert len(list_cells()) == 12
    assert list_cells(["1000x3", "100x1"]) == [(100, 1), (1000, 3)]


def test_cases_of_a_cell_differ_in_edit_and_style_and_repeat_with_the_seed() -> None:
    pairs = [
        Pair(f"{number}", "a.py", "\n\n".join(definition(at, 1) for at in range(number, number + 4)) + "\n", after)
        for number in range(0, 40, 4)
        for after in ["\n\n".join(definition(at, 2) for at in range(number, number + 4)) + "\n"]
    ]
    (first,) = draw_cases(pairs, [(100, 3)], seed=1)
    (again,) = draw_cases(pairs, [(100, 3)], seed=1)
    found = list(first)
    assert found == list(again)
    assert 1 < len(found) <= CHOICES
    assert len({one.edit for one in found}) == len(found)
    assert all(one.style in STYLES and one.name == "100x3" and one.before != one.after for one in found)


def definition(number: int, value: int) -> str:
    body = "\n".join(f"    step_{number}_{at} = {at}" for at in range(6))
    return f"def function_{number}(argument):\n{body}\n    return argument + {value}\n"


def test_settings_of_the_real_peers_travel_as_json() -> None:
    assert [size for name in PEERS["vllm"].speculations if name.startswith("ngram") for size in [int(name[6:])]] == [
        8,
        16,
        32,
        64,
    ]
    for peer in PEERS.values():
        for speculation in peer.speculations.values():
            job = Job("s", (), speculation)
            assert Job.from_json(json.loads(json.dumps(job.to_json()))) == job


CASE = CopyCase(
    "6x1", "a.py", "a = 1\nb = 2\nc = 3\nd = 4\n", "a = 1\nb = 5\nc = 3\nd = 4\n", "markers", "b = 5\nc = 3\n"
)
CONTEXT, MOST_TOKENS = 2048, 24


@pytest.fixture(scope="module")
def ours(smollm2: RealModel) -> Iterator[CopyOurs]:
    tokenizer, metadata = read_gguf_tokenizer(smollm2.gguf)
    text = metadata.to_bundle(tokenizer)
    decoder = tiny_decoder(vocab_size=len(tokenizer.token_bytes()), max_positions=CONTEXT)
    config = EngineConfig(CONTEXT, scheduler=SchedulerConfig(max_num_seqs=1))
    core = EngineCore(decoder, tokenizer.token_bytes(), config)
    with Engine(decoder, tokenizer.token_bytes(), config) as engine:
        yield CopyOurs(core, LoadedModel(smollm2.name, engine, text, 0.0, 0))


@pytest.fixture(scope="module")
def prepared(ours: CopyOurs) -> dict[str, Any]:
    return ours.prepare(CASE.to_json())


def written(ours: CopyOurs, prepared: dict[str, Any], *, drafted: bool) -> Answer:
    job = Job("s", (Arrival(tuple(prepared["prompt_ids"]), MOST_TOKENS),), {"case": CASE.name} if drafted else {})
    (raw,) = ours.run(job.to_json())
    return Answer.from_json(raw)


def test_what_is_written_with_drafts_is_what_is_written_plainly(ours: CopyOurs, prepared: dict[str, Any]) -> None:
    plain, drafted = (written(ours, prepared, drafted=way) for way in (False, True))
    assert drafted.token_ids == plain.token_ids
    assert len(set(plain.times)) == MOST_TOKENS


def test_the_draft_is_the_applys(ours: CopyOurs, prepared: dict[str, Any]) -> None:
    proposer = ours.proposer({"case": CASE.name})
    assert proposer is not None
    token_bytes = ours._loaded.text.tokenizer.token_bytes()
    draft = b"".join(token_bytes[token] for token in proposer.propose([], 64).token_ids)
    assert draft.startswith(CASE.after.encode()), "the merge by rule"
    assert ours.proposer({}) is None


def test_the_reference_is_what_an_apply_gets(ours: CopyOurs, prepared: dict[str, Any]) -> None:
    bounds = {"case": CASE.name, "salt": "s", "most_tokens": MOST_TOKENS, "most_passes": 99}
    made = ours.reference(bounds)
    plain = written(ours, prepared, drafted=False)
    assert tuple(made["token_ids"]) == plain.token_ids[: len(made["token_ids"])]
    request = ApplyRequest(
        CASE.before.encode(), CASE.edit, path=CASE.path, mode="model", scope="file", max_tokens=MOST_TOKENS
    )
    result = Applier(lambda: ModelMerger(ours._loaded)).apply(request)
    assert result.file.merged.rstrip("\n") == made["text"].rstrip("\n")
    assert ours.reference(bounds | {"most_passes": 1}) == {"gave_up": True}


def test_a_file_that_does_not_fit_is_told(ours: CopyOurs) -> None:
    long = CopyCase("9x1", "a.py", "value = 1\n" * 1800, "", "markers", "value = 2\n")
    assert "do not fit" in ours.prepare(long.to_json())["too_large"]
