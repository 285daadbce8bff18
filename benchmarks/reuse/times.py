"""Time the first token of a second turn: cold, after the exact prefix, in each mode, and a peer's.

Every time has a first turn of its own before it, with nothing cached, so that no mode finds what another has left; that
first turn, of the same length, is the cold time. All take turns, round after round, so that drift meets all alike.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from random import Random
from typing import Any

from agent_runtime.errors import ModelUnavailable
from agent_runtime.models.config import ModelSettings
from benchmarks.engine.ours import Ours, open_core
from benchmarks.harness import say
from benchmarks.peers.contest import is_there, open_entrants
from benchmarks.peers.protocol import (
    Arrival,
    Contestant,
    ContestantFailed,
    Job,
    parse_flags,
    peak_bytes,
    serve,
    take_stdout,
)
from benchmarks.reuse.edits import EditPair, make_edit_pairs
from benchmarks.reuse.prompts import Prompt, Prompts
from engine.decoder import Decoder
from engine.engine_config import EngineConfig
from engine.kv_pool import page_bytes
from engine.reuse import PromptSegment, Reuse
from engine.scheduler import SchedulerConfig
from engine.types import GenerationRequest

COLD = "cold"
LAST = "exact"
"""The mode that is measured last: then the whole second prompt is cached, after which the floors are measured."""


@dataclass(slots=True)
class PairTimes:
    """Seconds to the first token by mode or peer, one a round; `floor`s by mode: a pass over what it computed.

    usage: by mode, what became of the second prompt's tokens. tokens: by mode or peer, the first token.
    """

    id: str
    source: str
    prompt: int
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    floors: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    usage: dict[str, dict[str, Any]] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)


def measure_pairs(
    ours: Contestant, peers: Sequence[Contestant], pairs: Sequence[EditPair], modes: Sequence[str], rounds: int
) -> list[PairTimes]:
    """Measure all pairs, `rounds` times. The exact mode is measured in any case."""
    found = [PairTimes(pair.id, pair.source, _count_tokens(pair.second)) for pair in pairs]
    others = [mode for mode in modes if mode != LAST]
    for number in range(rounds):
        for pair, times in zip(pairs, found, strict=True):
            say(f"round {number + 1} of {rounds}: {pair.id}")
            for mode in (others if number % 2 == 0 else others[::-1]) + [LAST]:
                if mode != "balanced" or pair.overlaid:
                    _run_ours(ours, pair, mode, times, f"{pair.id}:{mode}:{number}")
            _run_floors(ours, pair, times, f"{pair.id}:{LAST}:{number}")
            for peer in peers:
                _run_peer(peer, pair, times, f"{pair.id}:{number}")
    return found


def _run_ours(ours: Contestant, pair: EditPair, mode: str, times: PairTimes, salt: str) -> None:
    ours.ask("forget")
    second = pair.overlaid if mode == "balanced" else pair.second
    engine_mode = "exact" if mode == "balanced" else mode
    times.seconds[COLD].append(ours.ask("turn", _make_question(pair.first, engine_mode, salt))["seconds"])
    answer = ours.ask("turn", _make_question(second, engine_mode, salt))
    times.seconds[mode].append(answer.pop("seconds"))
    times.tokens[mode] = answer.pop("token")
    times.usage[mode] = answer


def _run_floors(ours: Contestant, pair: EditPair, times: PairTimes, salt: str) -> None:
    prompt = _join_ids(pair.second)
    for mode, usage in times.usage.items():
        if mode != LAST:
            asked = {"prompt_ids": prompt, "num_tokens": usage["recomputed"], "salt": salt}
            times.floors[mode].append(ours.ask("floor", asked))


def _run_peer(peer: Contestant, pair: EditPair, times: PairTimes, salt: str) -> None:
    for segments, name in ((pair.first, f"{peer.name} {COLD}"), (pair.second, peer.name)):
        (answer,) = peer.run(Job(salt, (Arrival(tuple(_join_ids(segments)), 1),)))
        times.seconds[name].append(answer.times[0] - answer.arrived)
        times.tokens[name] = answer.token_ids[0]


def _make_question(segments: Sequence[PromptSegment], mode: Any, salt: str) -> dict[str, Any]:
    ends = Reuse.from_segments(segments, mode).segment_ends
    return {"prompt_ids": _join_ids(segments), "segment_ends": list(ends), "mode": mode, "salt": salt}


def _join_ids(segments: Sequence[PromptSegment]) -> list[int]:
    return [token for segment in segments for token in segment.token_ids]


def _count_tokens(segments: Sequence[PromptSegment]) -> int:
    return sum(len(segment.token_ids) for segment in segments)


CONTEXT = 16_384


def run_contest(
    options: argparse.Namespace, prompts: Prompts, made: Mapping[str, Sequence[Prompt]]
) -> tuple[list[PairTimes], dict[str, int], list[str]]:
    """Return the times, our memory, and what took part; ends the program where our engine cannot be run."""
    cache_dir = ModelSettings.from_env(os.environ).cache_dir
    peers = [name for name in options.peers.split(",") if name and is_there(name, cache_dir)]
    pairs = make_edit_pairs(prompts.tokenizer, options.pairs, options.seed)
    pairs += sample_turns(made, options.turns, options.seed)
    say(f"{options.model}: loading in {', '.join(['hunk', *peers])}")
    try:
        with open_entrants(options.model, CONTEXT, peers, cache_dir, module="benchmarks.reuse.times") as found:
            most = min(CONTEXT, found.config.max_positions)
            times = measure_pairs(found.ours, found.peers, select_fitting(pairs, most), options.modes, options.rounds)
            return times, found.ours.ask("memory"), [one.version for one in found.all]
    except (ContestantFailed, ModelUnavailable) as error:
        sys.exit(str(error))


def sample_turns(made: Mapping[str, Sequence[Prompt]], count: int, seed: int) -> list[EditPair]:
    """Return turns of the sessions, each with the one before it and its answer: so many of either kind.

    One kind goes on from the turn before, of the other the prompt was compacted in between.
    """
    random = Random(f"turns\0{seed}")
    kinds: dict[str, list[EditPair]] = {"turn": [], "compacted": []}
    for name, prompts in made.items():
        for number in range(1, len(prompts)):
            before, now = prompts[number - 1], prompts[number]
            first = (*before.segments, PromptSegment(before.answer_ids))
            kind = "compacted" if now.compacted else "turn"
            kinds[kind].append(EditPair(f"{name[:24]}:{number}", kind, first, tuple(now.segments)))
    return [pair for found in kinds.values() for pair in random.sample(found, min(count, len(found)))]


def select_fitting(pairs: Sequence[EditPair], context: int) -> list[EditPair]:
    """Return those whose prompts, and a token after them, fit a model's context; the others are named."""
    found = []
    for pair in pairs:
        longest = 1 + max(sum(len(segment.token_ids) for segment in prompt) for prompt in pair.prompts)
        if longest <= context:
            found.append(pair)
        else:
            say(f"{pair.id} is left out: {longest} tokens do not fit the model's {context}")
    return found


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
        """Seconds of a pass over a prompt's last `num_tokens` alone, after all others, whose KV must be cached."""
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
        """Return bytes: of the KV pool, of the span store, of a token, and the most that the process has had."""
        core, config = self._core, self._core.config
        one_page = page_bytes(core.model.config, config.page_size, core.model.weights.dtype)
        return {
            "pool_bytes": config.num_pages(one_page) * one_page,
            "arena_bytes": config.span_bytes,
            "token_bytes": one_page // config.page_size,
            "peak_bytes": peak_bytes(),
        }


def main() -> None:
    options, channel = parse_flags(__doc__), take_stdout()

    def configure(decoder: Decoder) -> EngineConfig:
        token_bytes = page_bytes(decoder.config, 1, decoder.weights.kv_dtype)
        return EngineConfig(
            max_seq_len=options.context,
            scheduler=SchedulerConfig(max_num_seqs=NUM_SEQUENCES),
            kv_sequences=NUM_SEQUENCES,
            span_bytes=NUM_SEQUENCES * options.context * token_bytes,
        )

    contestant = ReuseOurs(open_core(options.model, options.quantize, configure)[0])
    operations = {name: getattr(contestant, name) for name in ("run", "turn", "floor", "forget", "memory", "margin")}
    serve(channel, operations, {"version": "Hunk", "abilities": ["arrivals", "prefix"]})


if __name__ == "__main__":
    main()
