"""Our engine as a contestant whose turns say what they may reuse; its core is stepped in this process."""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import asdict
from typing import Any

from agent_runtime.models.config import LoadOptions, ModelSettings
from agent_runtime.wiring import open_model
from benchmarks.engine.ours import Ours
from benchmarks.peers.serving import peak_bytes, serve, take_stdout
from engine.core import EngineCore
from engine.engine_config import EngineConfig
from engine.kv_pool import page_bytes
from engine.reuse import Reuse
from engine.scheduler import SchedulerConfig
from engine.types import GenerationRequest

NUM_SEQUENCES = 2
"""The pool and the span store have room for so many prompts of the longest each."""


class ReuseOurs(Ours):
    """One engine with a span store."""

    _num_floors = 0

    def turn(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Run a prompt and write one token; what it took until that, and what became of the prompt's tokens.

        `mode` and `segment_ends` are those of a `Reuse`.
        """
        reuse = Reuse(asked["mode"], tuple(asked["segment_ends"]))
        request = GenerationRequest(asked["prompt_ids"], 1, salt=asked["salt"], reuse=reuse)
        began = time.perf_counter()
        request_id = self._core.add(request)
        while self._core.has_pending_work():
            for output in self._step():
                if output.id == request_id and output.result is not None:
                    seconds = time.perf_counter() - began
                    return {"seconds": seconds, "token": output.result.token_ids[0], **asdict(output.result.usage)}
        raise AssertionError("the request gave nothing")

    def floor(self, asked: dict[str, Any]) -> float:
        """Seconds of a pass over a prompt's last `num_tokens` alone, behind all others, whose KV must be cached."""
        prompt, count, size = asked["prompt_ids"], asked["num_tokens"], self._core.model.config.vocab_size
        self._num_floors += 1  # no two may run the same tokens, or the second finds them cached
        own = [(token + self._num_floors) % size for token in prompt[len(prompt) - count :]]
        other = prompt[: len(prompt) - count] + own
        found = self.turn({"prompt_ids": other, "mode": "exact", "segment_ends": (), "salt": asked["salt"]})
        assert found["recomputed"] == count, "the prompt before them is cached"
        seconds: float = found["seconds"]
        return seconds

    def forget(self, _: object) -> None:
        """Drop all KV, cached and stored."""
        self._core.reset()

    def memory(self, _: object) -> dict[str, int]:
        """Bytes: of the KV pool, of the span store, of a token, and the most that the process has had."""
        core, config = self._core, self._core.config
        one_page = page_bytes(core.model.config, config.page_size, core.model.weights.dtype)
        return {
            "pool_bytes": config.num_pages(core.model.config, core.model.weights.dtype) * one_page,
            "arena_bytes": config.span_bytes,
            "token_bytes": one_page // config.page_size,
            "peak_bytes": peak_bytes(),
        }


def open_core(model: str, context: int) -> EngineCore:
    """An engine of the size that is measured."""
    loaded = open_model(model, ModelSettings.from_env(os.environ), LoadOptions(context=2))
    loaded.engine.close()  # its model goes on in this one
    decoder = loaded.engine.model
    token_bytes = page_bytes(decoder.config, 1, decoder.weights.dtype)
    config = EngineConfig(
        max_seq_len=context,
        scheduler=SchedulerConfig(max_num_seqs=NUM_SEQUENCES),
        kv_sequences=NUM_SEQUENCES,
        span_bytes=NUM_SEQUENCES * context * token_bytes,
    )
    return EngineCore(decoder, loaded.text.tokenizer.token_bytes(), config)


def main() -> None:
    """Load the model and serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="a name of the catalogue, a file or a folder")
    parser.add_argument("--context", type=int, required=True, help="tokens of prompt and answer")
    options = parser.parse_args()
    channel = take_stdout()
    contestant = ReuseOurs(open_core(options.model, options.context))
    operations = {name: getattr(contestant, name) for name in ("run", "turn", "floor", "forget", "memory", "margin")}
    serve(channel, operations, {"version": "Hunk", "abilities": ["arrivals", "prefix"]})


if __name__ == "__main__":
    main()
