"""KV reuse with a real model: SmolLM2 on real code stays near the exact answer."""

from __future__ import annotations

import errno
import shutil
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.core import EngineCore
from engine.decoder import Decoder
from engine.engine_config import EngineConfig
from engine.kv_cache import page_runs
from engine.reuse import EXACT, Reuse
from engine.types import GenerationRequest, GenerationResult
from tests.models import RealModel

OLD = textwrap.dedent(
    '''\
    RATE = 19


    def net(price, count):
        """The price of some items without tax."""
        return price * count


    def gross(price, count):
        """The price of some items with tax."""
        tax = net(price, count) * RATE / 100
        return net(price, count) + tax


    def total(prices):
        """What a customer pays for all items."""
        return sum(gross(price, count) for price, count in prices)
    '''
)
EDITS = [
    ("RATE = 19", "RATE = 7", "\n\n# The tax rate is RATE ="),
    ("def gross(", "def with_tax(", "\n\n# The function that adds tax is called"),
]
NUM_TOKENS = 8


class Recording(Decoder):
    """Keeps the logits it makes."""

    def __init__(self, decoder: Decoder) -> None:
        self.__dict__.update(decoder.__dict__)
        self.recorded: list[Tensor] = []

    def logits(self, hidden: Tensor) -> Tensor:
        self.recorded.append(super().logits(hidden))
        return self.recorded[-1]


class Turns:
    """Prompts behind one another on one engine."""

    def __init__(self, decoder: Decoder, span_dir: Path | None = None) -> None:
        self.model = Recording(decoder)
        self.core = EngineCore(self.model, [], self.config(span_dir))

    @staticmethod
    def config(span_dir: Path | None) -> EngineConfig:
        return EngineConfig(512, page_size=16, span_bytes=32 << 20, span_dir=span_dir, check_integrity=True)

    def run(self, prompt: Sequence[int], reuse: Reuse = EXACT, forced: Sequence[int] = ()) -> GenerationResult:
        self.model.recorded.clear()
        self.core.add(GenerationRequest(prompt, NUM_TOKENS, forced_ids=tuple(forced), logprobs=0, reuse=reuse))
        while True:
            for output in self.core.step():
                assert output.error is None
                if output.result is not None:
                    return output.result

    def logprobs(self, prompt: Sequence[int], reuse: Reuse, forced: Sequence[int]) -> Tensor:
        """Of every output token, [NUM_TOKENS, vocab_size], where the output is given."""
        self.run(prompt, reuse, forced)
        return torch.log_softmax(torch.cat(self.model.recorded)[:NUM_TOKENS].to(torch.float64), -1)


def divergence(exact: Tensor, approximate: Tensor) -> float:
    """Mean KL over the output, in nats."""
    return float((exact.exp() * (exact - approximate)).sum(-1).mean())


def prompts(smollm2: RealModel, edit: tuple[str, str, str]) -> tuple[list[int], list[int]]:
    before, after, question = edit
    assert OLD.count(before) == 1
    encode = smollm2.tokenizer.encode
    return encode(OLD) + encode(question), encode(OLD.replace(before, after)) + encode(question)


def test_a_budget_of_one_is_a_full_prefill_and_divergence_falls_with_it(
    smollm2: RealModel, smollm2_decoder: Decoder
) -> None:
    """Over edits that the answer depends on, with the tokens behind the change run first."""
    budgets = [0.0, 0.5, 1.0]
    sums = [0.0] * len(budgets)
    cold, turns = Turns(smollm2_decoder), Turns(smollm2_decoder)
    for edit in EDITS:
        old, new = prompts(smollm2, edit)
        written = cold.run(new).token_ids
        exact = cold.logprobs(new, EXACT, written)
        for number, budget in enumerate(budgets):
            turns.core.reset()
            turns.run(old)
            approximate = turns.logprobs(new, Reuse("turbo", budget=budget), written)
            sums[number] += divergence(exact, approximate)
            if budget == 1.0:
                torch.testing.assert_close(approximate, exact, atol=2e-3, rtol=0.0)
                assert (approximate.argmax(-1) == exact.argmax(-1)).all()
    assert sums == sorted(sums, reverse=True)
    assert sums[0] > 1e-3, "the edits must matter"
    assert abs(sums[-1]) < 1e-6


def test_an_edit_that_changes_nothing_takes_the_same_bits(smollm2: RealModel, smollm2_decoder: Decoder) -> None:
    """K rotated anew and V copied: what lies in the pages is what the cold prefill put there."""
    prompt, _ = prompts(smollm2, EDITS[0])
    turns = Turns(smollm2_decoder)
    turns.run(prompt)
    root_kv = _kv(turns.core, turns.core.add(GenerationRequest(prompt, 2)), len(prompt) - 1)
    while turns.core.has_pending_work():
        turns.core.step()
    turns.core.pages.forget()
    number = turns.core.add(GenerationRequest(prompt, 2, reuse=Reuse("turbo")))
    placed_kv = _kv(turns.core, number, len(prompt) - 1)
    plan = turns.core._live[number][0].first_plan
    assert plan is not None
    assert plan.num_placed == len(prompt) - 1
    assert all(torch.equal(*pair) for pair in zip(root_kv, placed_kv, strict=True))


def _kv(core: EngineCore, number: int, num_tokens: int) -> list[Tensor]:
    """A request's keys and values by layer, behind its first pass."""
    core.step()
    runs = page_runs(core.pages.page_table(number), core.pages.page_size, 0, num_tokens)
    pool = core._pool
    return [torch.cat([part[first:end] for first, end in runs]).clone() for part in (*pool.keys, *pool.values)]


def test_keys_do_not_drift_over_fifty_turns(smollm2: RealModel, smollm2_decoder: Decoder) -> None:
    """Each turn moves the file by a few tokens; the keys are those of the first turn, rotated once and rounded once."""
    head, tail = smollm2.tokenizer.encode("# turn\n"), smollm2.tokenizer.encode("\n\n# end")
    text = smollm2.tokenizer.encode(OLD)
    turns = Turns(smollm2_decoder)
    turns.run([*text, *tail])
    store = turns.core.reuse
    assert store is not None
    for turn in range(1, 51):
        turns.core.pages.forget()
        prompt = [*head, *(head[-1:] * turn), *text, *tail]
        if turn < 50:
            turns.core.add(GenerationRequest(prompt, 1, reuse=Reuse("turbo")))
        else:
            number = turns.core.add(GenerationRequest(prompt, 2, reuse=Reuse("turbo")))
            own = _kv(turns.core, number, len(prompt) - 1)
            plan = turns.core._live[number][0].first_plan
            assert plan is not None
            whole = max(plan.placed, key=lambda each: len(each.slots))
            assert len(whole.slots) > 100
            assert whole.generation == 0, "what is placed is not entered anew"
            slots, at = torch.from_numpy(whole.slots), slice(whole.start, whole.end)
            ((cos, sin),) = turns.model.get_rotations(torch.arange(whole.start, whole.end)).values()
            for layer in range(turns.model.config.num_layers):
                expected = _rotated(store.store.keys[layer][slots], cos, sin)
                torch.testing.assert_close(own[layer][at].to(torch.float64), expected, atol=1e-5, rtol=1e-5)
        while turns.core.has_pending_work():
            turns.core.step()


def _rotated(keys: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE in float64."""
    first, second = keys.to(torch.float64).chunk(2, dim=-1)
    cos, sin = cos[:, None].to(torch.float64), sin[:, None].to(torch.float64)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def test_a_mask_of_another_shape_is_seen(
    smollm2: RealModel, smollm2_decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bottom-right causal mask, which lets recomputed tokens see the future (LMCache#1152), spoils a full prefill."""
    old, new = prompts(smollm2, EDITS[0])
    cold, turns = Turns(smollm2_decoder), Turns(smollm2_decoder)
    written = cold.run(new).token_ids
    exact = cold.logprobs(new, EXACT, written)
    ranges = tuple((first, first + 9) for first in range(20, len(new), 18))
    reuse = Reuse("turbo", recompute=ranges)

    def apart() -> float:
        turns.core.reset()
        turns.run(old)
        return divergence(exact, turns.logprobs(new, reuse, written))

    right = apart()
    monkeypatch.setattr("engine.decoder.attention_at_positions", _bottom_right)
    assert apart() > 10 * right + 0.01


def _bottom_right(query: Tensor, positions: Tensor, runs: Sequence[tuple[Tensor, Tensor]], *_: object) -> Tensor:
    keys, values = (torch.cat(parts)[: int(positions[-1]) + 1] for parts in zip(*runs, strict=True))
    num_queries, num_keys = len(query), len(keys)
    mask = torch.ones(num_queries, num_keys, dtype=torch.bool).tril(num_keys - num_queries)
    attended = torch.nn.functional.scaled_dot_product_attention(
        query.transpose(0, 1)[None],
        keys.transpose(0, 1)[None],
        values.transpose(0, 1)[None],
        attn_mask=mask,
        enable_gqa=True,
    )
    return attended[0].transpose(0, 1).contiguous()


def _truncate(files: Sequence[Path]) -> None:
    for file in files:
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def _flip_a_bit(files: Sequence[Path]) -> None:
    for file in files:
        content = bytearray(file.read_bytes())
        content[-1000] ^= 4
        file.write_bytes(content)


def _nothing(files: Sequence[Path]) -> None:
    assert files


def test_a_restart_takes_over_what_the_disk_has_and_damage_gives_the_cold_answer(
    smollm2: RealModel, smollm2_decoder: Decoder, tmp_path: Path
) -> None:
    prompt, _ = prompts(smollm2, EDITS[0])
    kept = tmp_path / "kept"
    first = Turns(smollm2_decoder, kept)
    cold = first.run(prompt)
    first.core.close()
    for number, damage in enumerate([_nothing, _truncate, _flip_a_bit]):
        folder = tmp_path / str(number)
        shutil.copytree(kept, folder)
        damage([path for path in folder.rglob("*") if path.is_file()])
        turns = Turns(smollm2_decoder, folder)
        again = turns.run(prompt, Reuse("turbo"))
        turns.core.close()
        assert again.token_ids == cold.token_ids
        assert again.usage.reused_approximate == (len(prompt) - 1 if damage is _nothing else 0)


def test_another_model_and_a_full_disk_give_the_cold_answer(
    smollm2: RealModel, smollm2_decoder: Decoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt, _ = prompts(smollm2, EDITS[0])
    first = Turns(smollm2_decoder, tmp_path)
    cold = first.run(prompt)
    first.core.close()
    other = Turns(smollm2_decoder)
    other.model.fingerprint = b"another model's "
    other.core = EngineCore(other.model, [], other.config(tmp_path))
    assert other.run(prompt, Reuse("turbo")).usage.reused_approximate == 0
    other.core.close()
    full = Turns(smollm2_decoder, tmp_path / "full")
    with monkeypatch.context() as patch:
        patch.setattr("tempfile.mkstemp", _no_space)
        assert full.run(prompt).token_ids == cold.token_ids
        full.core.close()
    again = Turns(smollm2_decoder, tmp_path / "full")
    result = again.run(prompt, Reuse("turbo"))
    assert (result.token_ids, result.usage.reused_approximate) == (cold.token_ids, 0)
    again.core.close()


def _no_space(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")
