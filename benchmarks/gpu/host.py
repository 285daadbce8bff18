"""What the host needs between two passes of a card: `python -m benchmarks.gpu.host`. It needs no card.

The engine runs its own loop, as on a card: it schedules, drafts, builds input arrays, launches, waits, books. Passes
are replaced by one that takes 5 ms from its launch and always gives the same hidden states; the host waits for it where
it reads the chosen tokens. `host` is the median time from the end of a pass to the launch of the next one, in
milliseconds; what the host does while the pass runs is not in it. `streams`: plain decoding by an engine with its
thread, whose streams are read and written as JSON by an event loop, as in a service.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from benchmarks.harness import Row, describe_machine, make_parser, render_rows, warn_if_busy, write_json
from engine.config import LayerSpec, ModelConfig, Rope
from engine.core import EngineCore
from engine.decoder import Decoder
from engine.engine import Engine
from engine.engine_config import EngineConfig
from engine.runner import cuda_graphs
from engine.runner.cuda_graphs import Work
from engine.runner.cuda_runner import KernelRunner
from engine.types import Draft, GenerationRequest
from engine.weights import Parameters
from kernels.accept.types import AcceptOutput

USERS = (1, 16, 64)
PASS_S = 0.005
MOST_ROWS = 4096
NUM_WARM_UPS = 8
"""Passes until the drafts have their length."""
VOCAB = 1000
WAYS: dict[str, dict[str, Any]] = {"plain": {}, "8 rows": {}, "temperature 0.2": {"temperature": 0.2}, "streams": {}}
MODEL = ModelConfig(
    architecture="Qwen2ForCausalLM", layers=(LayerSpec(Rope(1e4)),), hidden_size=32, num_heads=4, num_kv_heads=2,
    head_dim=16, ffn_size=32, vocab_size=VOCAB, max_positions=32768, rms_norm_eps=1e-6, tied_embeddings=True,
    qkv_bias=True,
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the table and write the JSON."""
    parser = make_parser("gpu.host", __doc__)
    parser.add_argument("--passes", type=int, default=100, help="of each measurement (default 100)")
    parser.add_argument("--context", type=int, default=2048, help="tokens of each user's prompt (default 2048)")
    options = parser.parse_args(arguments)
    warn_if_busy()
    rows: list[Row] = []
    for way in WAYS:
        for num_users in USERS:
            measure = measure_streams if way == "streams" else measure_core
            host_s, tokens = measure(num_users, way, options.context, options.passes)
            row: Row = {"way": way, "users": num_users, "host_ms": 1e3 * host_s, "tokens_a_pass": tokens}
            rows.append(row)
    print(describe_machine())
    columns = {"way": "{way}", "users": "{users}", "host, ms": "{host_ms:.2f}", "tokens a pass": "{tokens_a_pass:.1f}"}
    print(render_rows(rows, columns))
    write_json(options.json, {"machine": describe_machine()}, rows)


def measure_core(num_users: int, way: str, context: int, num_passes: int) -> tuple[float, float]:
    """Return the host's seconds for each pass in which all users decode, and the tokens that a pass gives."""
    num_tokens = 8 * (num_passes + NUM_WARM_UPS + num_users)  # nobody ends before the last has begun
    core, card = open_core(num_users, context + num_tokens + 64), FakeCard()
    card.put_into(core)
    draft = [card.find_token(core.model)] * 7
    waits = patch.object(AcceptOutput, "to_host", card.make_wait(AcceptOutput.to_host))
    with waits, patch.object(cuda_graphs, "PATIENCE", 0):
        for user in range(num_users):
            request = GenerationRequest(draw_prompt(user, context), num_tokens, seed=user, **WAYS[way])
            core.add(request, ConstantDraft(draft) if way == "8 rows" else None)
        while sum(output.step is not None and len(output.step.token_ids) > 0 for output in core.step()) < num_users:
            pass
        for _ in range(NUM_WARM_UPS):
            core.step()
        card.host_s.clear()
        outputs = [output for _ in range(num_passes) for output in core.step() if output.step is not None]
    given = sum(len(output.step.token_ids) for output in outputs if output.step is not None)
    return statistics.median(card.host_s), given / num_passes


def measure_streams(num_users: int, way: str, context: int, num_passes: int) -> tuple[float, float]:
    """As `measure_core`, of the last passes: all users end with the same one."""
    num_tokens, card = num_passes + num_users, FakeCard()

    async def read(engine: Engine, user: int) -> None:
        request = GenerationRequest(draw_prompt(user, context), num_tokens, seed=user, **WAYS[way])
        async with await engine.agenerate(request) as stream:
            async for step in stream:
                json.dumps(
                    {"id": user, "choices": [{"delta": {"content": step.text.decode()}}], "tokens": step.token_ids}
                )

    async def read_all(engine: Engine) -> None:
        await asyncio.gather(*(read(engine, user) for user in range(num_users)))

    waits = patch.object(AcceptOutput, "to_host", card.make_wait(AcceptOutput.to_host))
    with patch("engine.runner.cuda_runner.can_run_kernels", return_value=True):
        engine = Engine(draw_decoder(), [], EngineConfig(context + num_tokens + 64, kv_sequences=num_users))
    with engine, waits, patch.object(cuda_graphs, "PATIENCE", 0):
        engine._worker.call(card.put_into).result()
        asyncio.run(read_all(engine))
    return statistics.median(card.host_s[-num_passes // 2 :]), float(num_users)


def draw_prompt(user: int, context: int) -> list[int]:
    """Return the prompt of a user, which shares no beginning with others."""
    return [(user * 7 + at * at) % VOCAB for at in range(context)]


class FakeCard:
    """A `Capture` of work that is never run: each pass takes PASS_S from its launch."""

    def __init__(self) -> None:
        self.host_s: list[float] = []
        """From the end of a pass to the launch of the next."""
        self._hidden = torch.randn(1, MODEL.hidden_size).expand(MOST_ROWS, -1).contiguous()
        self._over: float | None = None
        self._ended: float | None = None

    def __call__(self, work: Work) -> Work:
        """As `Capture`."""
        return self._launch

    def put_into(self, core: EngineCore) -> None:
        """Have the core run its passes here, each by a graph."""
        core._runner = KernelRunner(core.model, core._pool, core.reuse, 999, self)

    def find_token(self, model: Decoder) -> int:
        """Return the likeliest token after every row."""
        return int(model.logits(self._hidden[:1]).argmax())

    def make_wait(self, read: Any) -> Any:
        """Return a function that waits for the pass, and then reads."""

        def wait(output: AcceptOutput) -> AcceptOutput:
            assert self._over is not None
            left = self._over - time.perf_counter()
            if left > 0:
                time.sleep(left)
            self._ended = time.perf_counter() if left > 0 else self._over
            found: AcceptOutput = read(output)
            return found

        return wait

    def _launch(self) -> Tensor:
        now = time.perf_counter()
        if self._ended is not None:
            self.host_s.append(now - self._ended)
        self._over, self._ended = now + PASS_S, None
        return self._hidden


class ConstantDraft:
    """A drafter that always proposes the same tokens."""

    def __init__(self, token_ids: Sequence[int]) -> None:
        self._token_ids = token_ids

    def propose(self, output_ids: Sequence[int], max_tokens: int) -> Draft:
        """As `Proposer`."""
        return Draft.from_tokens(self._token_ids[:max_tokens])


def draw_decoder() -> Decoder:
    """Return a decoder with random weights."""
    parameters = Parameters(MODEL, torch.float32)
    generator = torch.Generator().manual_seed(0)
    for _, tensor in sorted(parameters.slots().items()):
        tensor.normal_(0.0, 1.0, generator=generator)
    return Decoder(parameters)


def open_core(num_users: int, max_seq_len: int) -> EngineCore:
    """Return a core whose pool is as on a card."""
    with patch("engine.runner.cuda_runner.can_run_kernels", return_value=True):
        return EngineCore(draw_decoder(), [], EngineConfig(max_seq_len, kv_sequences=num_users))


if __name__ == "__main__":
    main()
