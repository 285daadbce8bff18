"""Second turns are timed behind their first turn; probes of reuse fit their edits, and their scores add up."""

from __future__ import annotations

import ast
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from agent_runtime.models.tokenizer import TokenizerBundle, read_gguf_tokenizer
from benchmarks.peers.protocol import Answer, Job
from benchmarks.reuse import probes as sources
from benchmarks.reuse import quality
from benchmarks.reuse.edits import EditPair, count_edits, make_edit_pairs
from benchmarks.reuse.probes import MAKERS, MOST_A_FILE, Probe, draw_stretches, holds, make_name, make_probes
from benchmarks.reuse.prompts import ALL, Books, Prompt, count_session
from benchmarks.reuse.quality import LaidOutProbe, Scorer, compare_logits, lay_out, render_quality
from benchmarks.reuse.report import make_edit_rows, make_time_rows, render_counts, render_edits, render_times, summarise
from benchmarks.reuse.times import ReuseOurs, measure_pairs, sample_turns, select_fitting
from engine.reuse import PromptSegment
from tests.engine.reuse.turns import random_ids, reusing_core
from tests.engine.tiny import tiny_decoder
from tests.models import RealModel

MODES = ("exact", "fast", "turbo", "balanced")


class InProcess:
    """Our contestant without a process around it."""

    name = "hunk"

    def __init__(self) -> None:
        self.turns = ReuseOurs(reusing_core())

    def ask(self, operation: str, argument: Any = None) -> Any:
        return getattr(self.turns, operation)(argument)


class Peer:
    """Notes what it was asked."""

    name = "vllm"

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def run(self, job: Job) -> list[Answer]:
        self.jobs.append(job)
        return [Answer(0.0, (1,), (0.25,))]


def tiny_pair() -> EditPair:
    """A change of three tokens in the middle of 120, the same question; notes on it stand behind."""
    random = Random(5)
    before, changed, behind, asked = (PromptSegment(random_ids(random, count)) for count in (50, 20, 50, 4))
    ids = list(changed.token_ids)
    now = PromptSegment([*ids[:8], *((token + 1) % 48 for token in ids[8:11]), *ids[11:]])
    other = PromptSegment([(token + 1) % 48 for token in asked.token_ids])
    note = PromptSegment(random_ids(random, 9))
    return EditPair(
        "a",
        "made",
        (before, changed, behind, asked),
        (before, now, behind, other),
        (before, changed, behind, note, other),
    )


def test_what_is_timed_is_what_is_counted_and_every_time_starts_from_the_first_turn() -> None:
    pair, peer = tiny_pair(), Peer()
    (times,) = measure_pairs(InProcess(), [peer], [pair], MODES, rounds=2)  # type: ignore[arg-type,list-item]
    (counted,) = count_edits([pair], MODES)
    for mode in MODES:
        usage, turn = times.usage[mode], counted.by_mode[mode]
        assert (usage["cached"], usage["reused_approximate"]) == (turn.cached, turn.reused)
        assert (usage["recomputed"], usage["recomputed_by"]) == (turn.recomputed, turn.by_reason)
        assert len(times.seconds[mode]) == 2
        assert len(times.floors[mode]) == (0 if mode == "exact" else 2)
    assert counted.by_mode["exact"].recomputed == 66
    assert counted.by_mode["turbo"].recomputed == 3 + 4
    assert counted.by_mode["fast"].recomputed == 12 + 4
    assert counted.by_mode["balanced"].recomputed == 9 + 4
    assert len(times.seconds["cold"]) == 2 * len(MODES)
    assert [len(job.arrivals[0].prompt_ids) for job in peer.jobs] == [124, 124, 124, 124]
    assert len({job.salt for job in peer.jobs}) == 2
    assert times.seconds["vllm"] == [0.25, 0.25]

    rows = make_time_rows([times])
    assert {row["mode"] for row in rows} == {*MODES, "cold", "vllm", "vllm cold"}
    by_mode = {row["mode"]: row for row in rows}
    assert by_mode["exact"]["ttft_ratio_prefix"] == 1.0
    assert by_mode["fast"]["ttft_ratio_cold"] == by_mode["fast"]["ttft_seconds"] / by_mode["cold"]["ttft_seconds"]
    assert by_mode["fast"]["recomputed_tokens"] == 16


def test_the_summary_has_the_names_that_were_agreed() -> None:
    pair = tiny_pair()
    (times,) = measure_pairs(InProcess(), [], [pair], MODES, rounds=1)  # type: ignore[arg-type]
    session = [Prompt(list(pair.first), [1, 2], 0, compacted=False), Prompt(list(pair.second), [], 3, compacted=True)]
    counts = [
        count_session("s", session, mode, Books(), idle=ALL if mode == "fast" else 0) for mode in ("exact", "fast")
    ]
    edits = count_edits([pair], MODES)
    (turn,) = sample_turns({"s": session}, 1, 0)
    (session_times,) = measure_pairs(InProcess(), [], [turn], ("fast",), rounds=1)  # type: ignore[arg-type]
    quality = {"fast": {"insensitive": {"top1": 1.0}, "sensitive": {"stale_rate": 0.0}}, "noise": {}}
    found = summarise(counts, counts, edits, [times, session_times], quality)
    fast = found["fast"]
    assert fast["recomputed_vs_prefix"] == fast["recomputed_tokens"] / found["exact"]["recomputed_tokens"]
    assert {"recomputed_share", "ttft_ratio_cold", "ttft_ratio_prefix", "insensitive", "sensitive"} <= fast.keys()
    assert fast["edit"]["recomputed_tokens"] == 16
    assert fast["edit"]["recomputed_vs_prefix"] == 16 / 66
    assert {"ttft_ratio_cold", "ttft_ratio_prefix", "floor"} <= fast["edit"].keys()
    assert "noise" not in found
    assert fast["workspace"]["recomputed_share"] == fast["recomputed_share"]
    printed = "\n".join([render_counts("all", counts), render_edits(edits), render_times([times, session_times])])
    assert "balanced" in printed
    assert "compacted" in printed


def test_sampled_turns_have_the_turn_before_them_with_its_answer() -> None:
    prompts = [
        Prompt([PromptSegment([number])], [100 + number], 0, compacted=number in (3, 6)) for number in range(1, 9)
    ]
    found = sample_turns({"s": prompts}, 3, 7)
    assert sorted(pair.source for pair in found) == ["compacted", "compacted", "turn", "turn", "turn"]
    for pair in found:
        (now,) = pair.second[0].token_ids
        assert [list(segment.token_ids) for segment in pair.first] == [[now - 1], [99 + now]]
    assert found == sample_turns({"s": prompts}, 3, 7)


def test_what_does_not_fit_the_context_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    pair = tiny_pair()  # the longest prompt is the one with a note, 133 tokens
    assert select_fitting([pair], 134) == [pair]
    assert select_fitting([pair], 133) == []
    assert "134 tokens" in capsys.readouterr().err


def test_edits_are_in_the_middle_of_their_context(smollm2: RealModel, tmp_path: Path) -> None:
    pairs = make_edit_pairs(smollm2.tokenizer, 2, seed=2, cases=tmp_path / "none recorded")
    assert [pair.source for pair in pairs] == ["made", "made"]
    assert pairs[:1] == make_edit_pairs(smollm2.tokenizer, 1, seed=2, cases=tmp_path / "none recorded")
    for row in make_edit_rows(count_edits(pairs, ("exact", "fast", "turbo"))):
        assert 5_500 <= row["prompt_tokens"] <= 8_500
        if row["mode"] == "exact":
            assert 0.3 <= row["cached_tokens"] / row["prompt_tokens"] <= 0.7
        else:
            assert 0 < row["recomputed_vs_prefix"] < 0.3


COUNT, NUM_TOKENS = 4, 12


@pytest.fixture(scope="module")
def probes() -> dict[str, list[Probe]]:
    return {kind: make_probes(kind, COUNT, seed=3) for kind in MAKERS}


@pytest.fixture(scope="module")
def text(smollm2: RealModel) -> TokenizerBundle:
    tokenizer, metadata = read_gguf_tokenizer(smollm2.gguf)
    return metadata.to_bundle(tokenizer)


def names(text: str) -> list[str]:
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return [node.name for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)]


def test_every_kind_has_probes_the_same_for_a_seed(probes: dict[str, list[Probe]]) -> None:
    assert {kind: len(made) for kind, made in probes.items()} == dict.fromkeys(MAKERS, COUNT)
    assert make_probes("caller", 3, seed=3) == probes["caller"][:3]
    assert make_probes("caller", 3, seed=4) != probes["caller"][:3]
    for made in probes.values():
        files = [each.file_name for each in made]
        assert max(map(files.count, files)) <= MOST_A_FILE


def test_every_edit_leaves_python_and_lies_in_the_middle(probes: dict[str, list[Probe]]) -> None:
    for probe in (each for made in probes.values() for each in made):
        for version in (probe.before, probe.after):
            assert ast.parse(version).body
            assert version.isascii()
        assert 0.1 < probe.edit_start / len(probe.before) < 0.7, probe.kind


def test_the_right_answer_is_in_the_new_text_only(probes: dict[str, list[Probe]]) -> None:
    for probe in probes["renamed"]:
        assert set(names(probe.after)) - set(names(probe.before)) == {probe.right}
        assert set(names(probe.before)) - set(names(probe.after)) == {probe.stale}
        assert probe.right not in probe.question + probe.begun


def test_a_callers_right_argument_is_the_first_parameter(probes: dict[str, list[Probe]]) -> None:
    for probe in probes["caller"]:
        for version, wanted in ((probe.after, probe.right), (probe.before, probe.stale)):
            (function,) = [
                node
                for node in ast.walk(ast.parse(version))
                if isinstance(node, ast.FunctionDef) and node.name == probe.symbols[0]
            ]
            assert function.args.args[0].arg == wanted


def test_a_function_to_repeat_stands_in_both_texts_after_the_edit(probes: dict[str, list[Probe]]) -> None:
    for probe in probes["repeat"]:
        (name,) = {name for name in names(probe.after) if f"`{name}`" in probe.question}
        assert probe.after.index(f"def {name}(") + len(name) + 4 > probe.edit_start
        assert f"def {name}(" in probe.before
        assert probe.judge("anything") == "other"


def test_an_answer_is_judged_by_which_symbol_comes_first() -> None:
    probe = Probe("caller", "conclusion", "f.py", "a", "b", "?", "", "depth", "path")
    assert probe.judge("depth=depth, path=path)") == "right"
    assert probe.judge("path=path, depth=depth)") == "stale"
    assert probe.judge("path_depth=1, the_path") == "other"
    assert holds("x = 12.", "12")
    assert not holds("x = 12.5 + 112 + a.12", "12")


def test_a_probe_whose_answers_cannot_be_told_apart_is_refused() -> None:
    with pytest.raises(ValueError, match="stale answer"):
        Probe("default", "look-up", "f.py", "a", "b", "?", "", "x y", "y")
    with pytest.raises(ValueError, match="changes nothing"):
        Probe("default", "look-up", "f.py", "a", "a", "?", "", "x", "y")
    with pytest.raises(ValueError, match="if and only if"):
        Probe("default", "look-up", "f.py", "a", "b", "?", "")


def test_new_names_keep_the_style() -> None:
    for seed in range(50):
        assert make_name("", "MAX_SIZE", Random(seed)).isupper()
        assert make_name("", "FileReader", Random(seed))[0].isupper()
        assert make_name("", "read_file", Random(seed)).islower()


def test_stretches_are_whole_statements_of_their_file(tmp_path: Path) -> None:
    body = "".join(f"# about {n}\n@cache\ndef function_{n}(value):\n    return value + {n}\n\n\n" for n in range(200))
    (tmp_path / "module.py").write_text(body)
    (tmp_path / "broken.py").write_text("def f(:\n" * 2000)
    for _, stretch in zip(range(20), draw_stretches(Random(2), tmp_path), strict=False):
        assert stretch.file_name == "module.py"
        assert stretch.text.strip() in body
        start, end = stretch.find_lines(stretch.functions[0])
        assert stretch.text[start:end].startswith("@cache\ndef function_")


@pytest.fixture(scope="module")
def laid_out(text: TokenizerBundle) -> list[LaidOutProbe]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "FEWEST_CHARS", 1500)
        patch.setattr(sources, "MOST_CHARS", 2500)
        return [lay_out(make_probes(kind, 1, seed=5)[0], text) for kind in MAKERS]


def test_both_turns_differ_by_the_changed_tokens_and_the_question(
    laid_out: list[LaidOutProbe], text: TokenizerBundle
) -> None:
    for each in laid_out:
        tail = len(each.tail)
        behind = each.tail_start - each.edit_end
        assert each.prompt[each.edit_end :] == each.stale_prompt[len(each.stale_prompt) - tail - behind :]
        assert text.tokenizer.decode(each.prompt[len(each.head) : each.tail_start]) == each.probe.after
        assert text.tokenizer.decode(each.tail).endswith(each.probe.begun)
        assert list(each.segment_ends) == sorted(set(each.segment_ends))
        assert each.segment_ends[-1] == each.tail_start


@pytest.fixture(scope="module")
def rows(laid_out: list[LaidOutProbe], text: TokenizerBundle) -> list[dict[str, Any]]:
    decoder = tiny_decoder(vocab_size=len(text.tokenizer.token_bytes()), max_positions=4096)
    scorer = Scorer(decoder, text, NUM_TOKENS)
    found = [scorer.score(each, with_noise=True) for each in laid_out]
    again = scorer.score(laid_out[0], with_noise=True)
    assert again == found[0]  # nothing is left of one probe for the next
    return [each for each in found if each is not None]


def test_approximations_lie_between_the_noise_and_the_stale_answer(rows: list[dict[str, Any]]) -> None:
    assert len(rows) == 3
    for row in rows:
        assert max(row["noise"]["kl"]) < 1e-6
        turbo, fast = row["settings"]["turbo"], row["settings"]["fast"]
        assert sum(turbo["kl"]) > 1e-8
        assert turbo["num_run"] <= fast["num_run"] < row["prompt_tokens"]
        assert (row["stale_kl"] is None) == (row["class"] == "insensitive")
        if row["stale_kl"] is not None:
            assert sum(turbo["kl"]) < sum(row["stale_kl"])


def test_modes_in_int8_are_held_to_a_full_recompute_that_is_not(
    rows: list[dict[str, Any]], laid_out: list[LaidOutProbe], text: TokenizerBundle
) -> None:
    decoder = tiny_decoder(vocab_size=len(text.tokenizer.token_bytes()), max_positions=4096)
    found = Scorer(decoder, text, NUM_TOKENS, kv_int8=True).score(laid_out[0], with_noise=True)
    assert found is not None
    assert {name: found[name] for name in found if name != "settings"} == {
        name: rows[0][name] for name in rows[0] if name != "settings"
    }
    exact, turbo = found["settings"]["exact"], found["settings"]["turbo"]
    assert 1e-8 < sum(exact["kl"]) < sum(found["stale_kl"])
    assert exact["num_run"] == found["prompt_tokens"]
    assert turbo["num_run"] == rows[0]["settings"]["turbo"]["num_run"]
    assert turbo["kl"] != rows[0]["settings"]["turbo"]["kl"]


def test_the_summary_has_the_keys_of_the_interface(rows: list[dict[str, Any]]) -> None:
    found = quality.summarise(rows)
    assert {"kl_mean", "kl_p99", "top1", "exact_match"} <= set(found["fast"]["insensitive"])
    assert {"effect_recovered", "stale_rate"} <= set(found["turbo"]["sensitive"])
    assert set(found) == {"fast", "turbo", quality.NOISE}
    assert "| noise floor |" in render_quality(found)


def test_kl_is_torchs_and_points_from_full_to_the_other() -> None:
    full, other = (torch.randn(5, 40, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    wanted = F.kl_div(other.double().log_softmax(-1), full.double().log_softmax(-1), log_target=True, reduction="none")
    assert compare_logits(full, other)["kl"] == pytest.approx(wanted.sum(-1).numpy(), rel=1e-5)
    assert not np.allclose(compare_logits(full, other)["kl"], compare_logits(other, full)["kl"])
    assert compare_logits(full, full) == {"kl": [0.0] * 5, "same_top": [True] * 5}


def test_what_is_recovered_is_one_less_the_ratio_of_the_sums() -> None:
    def row(kl: list[float], stale: list[float]) -> dict[str, Any]:
        approximation = {"kl": kl, "same_top": [True] * len(kl), "num_run": 1, "num_file": 1, "verdict": "right"}
        whole = {"prompt_tokens": 2, "tokens_behind": 2, "right": "a", "verdict": "right", "stale_kl": stale}
        return whole | {"settings": {"fast": approximation}}

    rows = [row([0.5, 0.0], [3.0, 1.0]), row([0.5, 0.0], [0.0, 0.0])]
    found = quality.summarise_part(rows, "fast")
    assert found["effect_recovered"] == 0.75
    assert (found["kl_mean"], found["kl_max"], found["share_run"], found["stale_rate"]) == (0.25, 0.5, 0.5, 0.0)
