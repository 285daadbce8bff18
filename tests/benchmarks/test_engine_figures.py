"""Figures of the engine benchmark from the times of tokens, and the work of a pass against counts made by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from benchmarks.engine.roofline import (
    Rows,
    Work,
    count_kv_token_bytes,
    count_layer_weights,
    count_work,
    list_layer_shapes,
)
from benchmarks.engine.workload import (
    LOAD_ARRIVALS,
    LOAD_STREAMS,
    LOAD_TOKENS,
    MODULES,
    PREFIX_LEN,
    Text,
    compute_advantage,
    compute_decode_rate,
    compute_figures,
    compute_throughput,
    list_gaps,
    make_measures,
    read_source_text,
    select_fitting,
)
from benchmarks.peers.contest import NEAR_TIE, Agreement, compare
from benchmarks.peers.protocol import Answer, Arrival, Job, Recorder
from engine.config import ModelConfig
from tests.engine.tiny import MISTRAL, tiny_config, tiny_parameters


def answer(arrived: float, *times: float) -> Answer:
    return Answer(arrived, tuple(range(len(times))), times)


def test_prefill_is_the_prompt_over_the_wait_for_the_first_token() -> None:
    assert compute_figures("prefill 512", [answer(1.0, 3.0)]) == {"prefill_512_tok_s": 256.0}


def test_decoding_is_counted_while_all_decode_and_throughput_from_the_first_submission() -> None:
    answers = [answer(0.0, 1.0, 2.0, 3.0, 4.0), answer(0.0, 2.0, 3.0, 4.0, 5.0)]
    assert compute_decode_rate(answers) == 2.0  # in (2, 4]: two tokens of each
    assert compute_throughput(answers) == 8 / 5
    assert compute_figures("decode 2", answers) == {"decode_2_tok_s": 2.0, "throughput_2_tok_s": 1.6}
    assert compute_decode_rate([answer(0.0, 1.0, 2.0), answer(0.0, 3.0, 4.0)]) == 1.0  # one by one
    assert compute_throughput([answer(2.0, 3.0), answer(1.0, 5.0)]) == 0.5


def test_load_counts_waits_and_the_gaps_behind_the_first_late_arrival() -> None:
    streams = [answer(0.0, 0.0, 9.0, 10.0, 11.0, 13.0)] * LOAD_STREAMS  # the first gap lies before
    late = [answer(9.0, 9.5), answer(10.0, 10.25), answer(11.0, 12.0)]
    assert compute_figures("load", [*streams, *late]) == {
        "load_ttft_p50_ms": 500.0,
        "load_ttft_max_ms": 1000.0,
        "load_gap_p50_ms": 1000.0,
        "load_gap_max_ms": 2000.0,
    }
    assert list_gaps([answer(0.0, 1.0, 2.0, 4.0)], since=2.0) == [2.0]


def test_a_cached_prefix_is_measured_against_the_cold_one() -> None:
    assert compute_figures("prefix", [answer(0.0, 4.0), answer(4.0, 4.5)]) == {
        "prefix_cold_ms": 4000.0,
        "prefix_cached_ms": 500.0,
        "prefix_cached_share": 0.125,
    }


@pytest.mark.parametrize(
    ("name", "expected"),
    [("decode_1_tok_s", 2.0), ("load_gap_max_ms", 0.5), ("peak_gb", 0.5), ("prefix_cached_share", None)],
)
def test_ahead_is_more_of_a_rate_and_less_of_a_time(name: str, expected: float | None) -> None:
    assert compute_advantage(name, ours=10.0, theirs=5.0) == expected


def test_every_measure_can_become_due_and_its_prompts_differ() -> None:
    text = Text(range(100_000))
    found = make_measures(text)
    assert [measure.name for measure in found] == [
        *("prefill 512", "prefill 2048", "prefill 8192"),
        *("decode 1", "decode 4", "decode 16", "load", "prefix"),
    ]
    prompts = [arrival.prompt_ids for measure in found[:-1] for arrival in measure.arrivals]
    assert len({prompt[0] for prompt in prompts}) == len(prompts)
    load = found[-2]
    assert len(load.arrivals) == LOAD_STREAMS + LOAD_ARRIVALS
    assert [arrival.after for arrival in load.arrivals] == sorted(arrival.after for arrival in load.arrivals)
    # A stream has two thirds of its tokens when the last comes, so that it, too, is waited for beside all of them.
    assert load.arrivals[-1].after / LOAD_STREAMS < 0.75 * LOAD_TOKENS
    first, second = found[-1].arrivals
    assert first.prompt_ids[:PREFIX_LEN] == second.prompt_ids[:PREFIX_LEN]
    assert first.prompt_ids[PREFIX_LEN] != second.prompt_ids[PREFIX_LEN]


def test_what_does_not_fit_the_model_is_named() -> None:
    found = make_measures(Text(range(100)))
    said: list[str] = []
    assert {measure.name for measure in found} - {
        measure.name for measure in select_fitting(found, 8192, said.append)
    } == {"prefill 8192"}
    assert said == ["prefill 8192: 8193 tokens do not fit the model's 8192"]
    assert select_fitting(found, 8193, said.append) == found


def test_text_is_long_enough_for_the_longest_prompt() -> None:
    assert len(read_source_text()) > 8 * 8192
    assert len(MODULES) == len(set(MODULES))


def test_a_job_travels() -> None:
    job = Job("salt", (Arrival((1, 2), 3), Arrival((4,), 1, after=2)))
    assert Job.from_json(job.to_json()) == job


def test_arrivals_are_due_once_enough_tokens_are_out() -> None:
    job = Job("s", (Arrival((1,), 2), Arrival((2,), 2), Arrival((3,), 1, after=3)))
    recorder = Recorder(job, now=10.0)
    assert [number for number, _ in recorder.due(10.5)] == [0, 1]
    assert recorder.due(10.5) == []
    recorder.tokens(1, [7, 8], 11.0)
    assert recorder.due(11.0) == []
    recorder.tokens(0, [9], 12.0)
    assert [number for number, _ in recorder.due(12.5)] == [2]
    recorder.tokens(2, [5], 13.0)
    assert recorder.answers() == [Answer(0.5, (9,), (2.0,)), Answer(0.5, (7, 8), (1.0, 1.0)), Answer(2.5, (5,), (3.0,))]


def compared(own: Sequence[int], other: Sequence[int], margin: float) -> Agreement:
    asked: list[tuple[tuple[int, ...], int, int]] = []

    def record(context: Sequence[int], first: int, second: int) -> float:
        asked.append((tuple(context), first, second))
        return margin

    at = tuple(float(index) for index in range(len(own)))
    found = compare([Arrival((1, 2), len(own))], [Answer(0.0, tuple(own), at)], [Answer(0.0, tuple(other), at)], record)
    for context, first, second in asked:  # behind the prompt and what both wrote
        agreed = len(context) - 2
        assert context == (1, 2, *own[:agreed])
        assert (first, second) == (own[agreed], other[agreed])
        assert first != second
    return found


def test_equal_outputs_agree() -> None:
    found = compared([5, 6, 7], [5, 6, 7], margin=9.0)
    assert found == Agreement(outputs=1, equal=1, tokens_agreed=3, tokens_compared=3)
    assert found.comparable


@pytest.mark.parametrize("other", [[5, 9, 9], [9, 6, 7]])
def test_a_near_tie_is_no_disagreement(other: list[int]) -> None:
    found = compared([5, 6, 7], other, margin=NEAR_TIE)
    assert (found.near_ties, found.parted_far, found.first_tokens_wrong) == (1, 0, 0)
    assert found.comparable


def test_another_first_token_is_another_computation() -> None:
    found = compared([5, 6, 7], [9, 6, 7], margin=NEAR_TIE + 0.01)
    assert (found.near_ties, found.parted_far, found.first_tokens_wrong) == (0, 0, 1)
    assert (found.tokens_agreed, found.tokens_compared) == (0, 1)
    assert not found.comparable


def test_later_departures_count_when_they_are_most() -> None:
    far, equal = compared([5, 6, 7], [5, 6, 9], margin=2.0), compared([5], [5], margin=0.0)
    assert (far.parted_far, far.tokens_agreed, far.tokens_compared) == (1, 2, 3)
    assert not far.comparable
    assert (far + equal).comparable
    assert not (far + far + equal).comparable


SIZES = {"num_layers": 3, "hidden_size": 8, "num_heads": 2, "num_kv_heads": 1, "head_dim": 4, "ffn_size": 16}
CONFIG = tiny_config(**SIZES, vocab_size=10)
# A layer: qkv (2 + 1 + 1) * 4 x 8 = 128, attention_out 8 x 8 = 64, gate_up 32 x 8 = 256, down 8 x 16 = 128.
LAYERS = 3 * (128 + 64 + 256 + 128)
TOKEN_KV = 3 * 2 * 1 * 4 * 2  # layers, keys and values, heads, head_dim, bytes


def test_two_tokens_behind_five_counted_by_hand() -> None:
    assert count_work(CONFIG, [Rows(5, 2)]) == Work(
        linear_flops=2 * 2 * LAYERS,
        attention_flops=3 * 2 * 4 * 4 * (6 + 7),  # layers, heads, head_dim, 2 products of 2, keys that they see
        lm_head_flops=2 * 10 * 8,
        weight_bytes=2 * (LAYERS + 10 * 8),
        kv_bytes=(7 + 2) * TOKEN_KV,
    )


def test_a_batch_reads_the_weights_once_and_every_sequence_its_own_kv() -> None:
    one, many = count_work(CONFIG, [Rows(5, 2)]), count_work(CONFIG, [Rows(5, 2)] * 3)
    assert many.weight_bytes == one.weight_bytes
    for name in ("linear_flops", "attention_flops", "lm_head_flops", "kv_bytes", "flops"):
        assert getattr(many, name) == 3 * getattr(one, name)
    assert many.num_bytes == one.weight_bytes + 3 * one.kv_bytes


def test_a_verify_pass_has_logits_for_each_row() -> None:
    assert (
        count_work(CONFIG, [Rows(5, 4, num_logits=4)]).lm_head_flops
        == 4 * count_work(CONFIG, [Rows(5, 4)]).lm_head_flops
    )


def test_float32_moves_twice_the_bytes() -> None:
    assert count_work(CONFIG, [Rows(5, 2)], itemsize=4).num_bytes == 2 * count_work(CONFIG, [Rows(5, 2)]).num_bytes


def test_a_window_bounds_what_is_seen() -> None:
    config = tiny_config(**SIZES, **MISTRAL, sliding_window=4)
    windowed = count_work(config, [Rows(5, 2)])
    assert windowed.attention_flops == 3 * 2 * 4 * 4 * (4 + 4)
    assert windowed.kv_bytes == (5 + 2) * TOKEN_KV  # positions 2 to 6 are read, two are written
    assert count_work(config, [Rows(0, 3)]) == count_work(tiny_config(**SIZES, **MISTRAL), [Rows(0, 3)])


@pytest.mark.parametrize("changes", [{}, SIZES, {"num_kv_heads": 4}])
def test_the_shapes_are_those_of_a_models_tensors(changes: dict[str, int]) -> None:
    config: ModelConfig = tiny_config(**changes)
    layers = list(tiny_parameters(config).take_layers())
    for name, shape in list_layer_shapes(config).items():
        assert getattr(layers[0], name).shape == shape
    assert count_layer_weights(config) == sum(
        getattr(each, name).numel() for each in layers for name in list_layer_shapes(config)
    )


def test_bytes_of_a_token() -> None:
    assert count_kv_token_bytes(CONFIG, 2) == TOKEN_KV == 48
