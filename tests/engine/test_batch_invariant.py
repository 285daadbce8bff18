"""In the batch-invariant setting a token has the same bits in steps of any size and company, drafted or not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.batch_invariant import InvariantDecoder
from engine.core import EngineCore
from engine.decoder import Decoder
from engine.engine_config import EngineConfig
from engine.scheduler import SchedulerConfig
from engine.types import GenerationRequest
from engine.weights import load
from kernels.attention import invariant_attention
from tests.engine.cores import PROMPT, AlwaysWrong, Collected, Oracle, RandomDraft, drain
from tests.engine.test_lora import write_adapter
from tests.engine.tiny import FAMILIES, LLAMA, TOKEN_BYTES, VOCAB_SIZE, tiny_config, tiny_parameters
from tests.kernels.naive import naive_causal_attention as reference_attention
from tests.kernels.test_attention import scattered
from tests.models import RealModel

SHAPES: dict[str, dict[str, Any]] = FAMILIES | {"llama": LLAMA | {"num_heads": 3, "num_kv_heads": 1}}
DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture
def _three_threads() -> Iterator[None]:
    """They cut arrays where no vector ends."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def tiny(shape: str, dtype: torch.dtype) -> Decoder:
    return Decoder(tiny_parameters(tiny_config(**SHAPES[shape]), dtype=dtype))


def in_passes(model: Decoder, token_ids: Tensor, sizes: Sequence[int]) -> Tensor:
    """Hidden states of the tokens, run so many a pass; the last size again and again."""
    caches, hidden = model.new_caches(1, len(token_ids)), []
    for at in range(len(token_ids)):
        done = sum(map(len, hidden))
        if done == len(token_ids):
            break
        hidden.append(model.forward(token_ids[done : done + sizes[min(at, len(sizes) - 1)]], caches))
    return torch.cat(hidden)


SIZES = [[1], [2], [17], [64], [3, 100, 1, 1, 60]]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_token_has_the_same_bits_in_a_pass_of_any_size(shape: str, dtype: torch.dtype) -> None:
    plain = tiny(shape, dtype)
    model = InvariantDecoder(plain)
    token_ids = torch.randint(VOCAB_SIZE, (300,), generator=torch.Generator().manual_seed(0))
    whole = in_passes(model, token_ids, [300])
    logits = model.logits(whole)
    for sizes in SIZES:
        assert torch.equal(in_passes(model, token_ids[:90], sizes), whole[:90])
    for first, last in [(0, 1), (5, 7), (83, 100), (30, 94), (0, 300)]:
        assert torch.equal(model.logits(whole[first:last]), logits[first:last])
        found = model.likeliest(whole[first:last])
        assert found.token_ids.tolist() == logits[first:last].argmax(dim=-1).tolist()
        assert found.largest.tolist() == logits[first:last].amax(dim=-1).tolist()
    if dtype == torch.float32:
        expected = plain.forward(token_ids, plain.new_caches(1, 300))
        assert float((whole - expected).norm() / expected.norm()) < 5e-6


@pytest.mark.usefixtures("_three_threads")
def test_so_it_has_with_threads_that_share_a_piece() -> None:
    model = InvariantDecoder(tiny("llama", torch.bfloat16))
    token_ids = torch.randint(VOCAB_SIZE, (90,), generator=torch.Generator().manual_seed(1))
    assert torch.equal(in_passes(model, token_ids, [17, 1, 40, 9]), in_passes(model, token_ids, [90]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_token_of_smollm2_has_the_same_bits_in_a_pass_of_any_size(
    smollm2: RealModel, smollm2_decoder: Decoder, dtype: torch.dtype
) -> None:
    plain = smollm2_decoder if dtype == torch.float32 else Decoder(load(smollm2.gguf, dtype))
    model = InvariantDecoder(plain)
    token_ids = torch.tensor(smollm2.tokenizer.encode(Path(__file__).read_text())[260:330])
    whole = in_passes(model, token_ids, [70])
    assert torch.equal(in_passes(model, token_ids, [33, 1, 2, 17]), whole)
    assert torch.equal(model.logits(whole[40:41]), model.logits(whole[7:50])[33:34])


def invariant_core(model: Decoder, **limits: Any) -> EngineCore:
    config = EngineConfig(
        200, page_size=4, batch_invariant=True, check_integrity=True, scheduler=SchedulerConfig(**limits)
    )
    return EngineCore(model, TOKEN_BYTES, config)


@settings(max_examples=12)
@given(st.data(), st.sampled_from(sorted(SHAPES)), st.sampled_from([3, 20, 512]), st.integers(1, 4))
def test_whatever_runs_beside_a_request_and_however_it_is_drafted_its_bits_are_the_same(
    data: st.DataObject, shape: str, max_batched_tokens: int, max_num_seqs: int
) -> None:
    """In bfloat16, log-probabilities too; prompts that share prefixes, so that KV of one is read by others."""
    model = tiny(shape, torch.bfloat16)
    wanted, expected = [], []
    for _ in range(data.draw(st.integers(2, 5))):
        request = GenerationRequest(
            prompt=(PROMPT * 3)[: data.draw(st.integers(1, 40))],
            max_new_tokens=data.draw(st.integers(1, 30)),
            temperature=data.draw(st.sampled_from([0.0, 0.8])),
            logprobs=data.draw(st.sampled_from([None, 2])),
        )
        core = invariant_core(model, max_num_seqs=1)
        request_id = core.add(request)
        wanted.append(request)
        expected.append(drain(core).results[request_id])
    limits = {"max_batched_tokens": max(max_batched_tokens, max_num_seqs), "max_num_seqs": max_num_seqs}
    core = invariant_core(model, **limits)
    ids, collected = [], Collected()
    for request, alone in zip(wanted, expected, strict=True):
        drafters = [
            None,
            Oracle(alone.token_ids),
            AlwaysWrong(alone.token_ids, VOCAB_SIZE),
            RandomDraft(alone.token_ids, VOCAB_SIZE, 3),
        ]
        ids.append(core.add(request, data.draw(st.sampled_from(drafters))))
        for _ in range(data.draw(st.integers(0, 3))):
            collected.take(core.step())
    drain(core, collected)
    assert [collected.results[each] for each in ids] == expected


def test_adapters_change_their_own_rows_only_and_by_the_same_bits(tmp_path: Path) -> None:
    parameters = tiny_parameters(tiny_config(), dtype=torch.bfloat16)
    folder = write_adapter(tmp_path / "a", parameters)
    model = Decoder(parameters)
    names = [None, "a", None, "a", "a", None]
    wanted = [
        GenerationRequest(prompt=(PROMPT * 3)[: 5 + 6 * at], max_new_tokens=20, adapter=name, logprobs=1)
        for at, name in enumerate(names)
    ]
    together = invariant_core(model, max_num_seqs=6)
    together.load_adapter("a", folder)
    ids = [together.add(request) for request in wanted]
    results = drain(together).results
    for request_id, request in zip(ids, wanted, strict=True):
        alone = invariant_core(model)
        alone.load_adapter("a", folder)
        other = alone.add(request)
        assert drain(alone).results[other] == results[request_id]
    plain = invariant_core(model)
    without = plain.add(replace(wanted[1], adapter=None))
    assert drain(plain).results[without].token_ids != results[ids[1]].token_ids, "the adapter must show"


@settings(max_examples=40)
@given(
    st.integers(1, 70),
    st.integers(0, 700),
    st.sampled_from([(1, 1, 16), (2, 3, 8), (3, 1, 4)]),
    st.sampled_from([None, 1, 30, 300]),
    st.sampled_from(DTYPES),
    st.lists(st.integers(1, 700), max_size=3),
)
def test_its_attention_equals_the_written_out_one(
    num_tokens: int, before: int, heads: tuple[int, int, int], window: int | None, dtype: torch.dtype, cuts: list[int]
) -> None:
    """Runs begin where the first query's window does, or at the start."""
    num_kv_heads, group, head_dim = heads
    seq_len = before + num_tokens
    query = torch.randn(num_tokens, num_kv_heads * group, head_dim).to(dtype)
    keys, values = torch.randn(2, seq_len, num_kv_heads, head_dim).to(dtype)
    first = 0 if window is None else max(0, before + 1 - window)
    runs = scattered(keys[first:], values[first:], [cut for cut in cuts if cut < seq_len - first])
    actual = invariant_attention(query, runs, seq_len, window)
    expected = reference_attention(query.float(), keys.transpose(0, 1).float(), values.transpose(0, 1).float(), window)
    error = float((actual.float() - expected).norm() / expected.norm())
    assert error < {torch.float32: 2e-6, torch.bfloat16: 4e-3}[dtype]
