"""What is measured of one model on a card: prefill, plain decoding, copied edits, the first token of a second turn."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.copy.ours import ROWS_ARE_FREE
from benchmarks.engine.ours import FixedDraft
from benchmarks.gpu.counted import (
    CHANGED,
    COLD,
    CONTEXT,
    CONTEXTS,
    PASSES,
    PLAIN,
    PROMPTS,
    SEGMENT,
    pass_name,
    prefill_name,
    turn_name,
)
from benchmarks.gpu.edits import Edit
from benchmarks.gpu.pieces import TextTokens
from benchmarks.gpu.script import ScriptedDecoder
from benchmarks.gpu.stream import Written, settle, write
from engine.core import EngineCore
from engine.decoder import Decoder
from engine.engine_config import EngineConfig
from engine.kv_pool import page_bytes
from engine.reuse import Reuse
from engine.scheduler import SchedulerConfig
from engine.types import GenerationRequest

NUM_PLAIN = 256
CHUNK = 8192
"""Tokens of a prompt that one pass runs: enough to fill a card."""

SPARE = 1024


@dataclass(frozen=True, slots=True)
class Copied:
    """One edit as it was written: the passes, and the tokens a second of each run."""

    name: str
    group: str
    prompt_len: int
    num_tokens: int
    passes: tuple[tuple[int, int], ...]
    tok_s: tuple[float, ...]


@dataclass(slots=True)
class Found:
    """Seconds or rates by the names that `counted.bounds` has, one each round; edits, and why one is not told."""

    figures: dict[str, list[float]] = field(default_factory=dict)
    copied: list[Copied] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def add(self, name: str, value: float) -> None:
        self.figures.setdefault(name, []).append(value)


def measure(decoder: Decoder, edits: Sequence[Edit], tokens: TextTokens, rounds: int, most_context: int) -> Found:
    """Everything of one model, `rounds` times, in turns."""
    found = Found()
    with TemporaryDirectory() as folder:
        _speeds(decoder, edits, tokens, rounds, Path(folder), found)
    _passes(decoder, rounds, found)
    for num_tokens in CONTEXTS:
        if num_tokens <= most_context:
            gc.collect()
            torch.cuda.empty_cache()
            _second_turns(decoder, num_tokens, rounds, found)
    return found


def _speeds(
    decoder: Decoder, edits: Sequence[Edit], tokens: TextTokens, rounds: int, folder: Path, found: Found
) -> None:
    """One engine that measures at its start how long passes take, by which drafts are as long as they pay."""
    script = ScriptedDecoder(decoder)
    longest = max([max(PROMPTS), *(len(each.prompt) + len(each.output) for each in edits)]) + SPARE
    core = EngineCore(script, tokens.token_bytes(), _config(longest, pass_times_dir=folder))
    for number in range(-1, rounds):  # the first round makes kernels and graphs, and does not count
        counts = number >= 0
        for num_tokens in PROMPTS:
            prompt = random_ids(num_tokens, decoder.config.vocab_size, 1000 * number + num_tokens)
            seconds = write(core, GenerationRequest(prompt, 1)).seconds
            core.forget_cached()
            if counts:
                found.add(prefill_name(num_tokens), num_tokens / seconds)
        prompt = random_ids(CONTEXT, decoder.config.vocab_size, number)
        plain = write(core, GenerationRequest(prompt, NUM_PLAIN))
        settle(core)
        if counts:
            found.add(PLAIN, plain.decode_tok_s)
    for edit in edits:
        _copy(core, script, edit, tokens, rounds, found)


def _passes(decoder: Decoder, rounds: int, found: Found) -> None:
    """Single steps of an engine over a token and a confirmed draft, however long, behind a prompt that is cached."""
    script = ScriptedDecoder(decoder)
    core = EngineCore(script, [], _config(CONTEXT + max(PASSES) + SPARE))
    core.times.replace(ROWS_ARE_FREE)
    prompt = random_ids(CONTEXT, decoder.config.vocab_size, 0)
    for number in range(-1, rounds):
        for num_rows in PASSES:
            text = random_ids(num_rows, decoder.config.vocab_size, num_rows)
            script.follow(text)
            write(core, GenerationRequest(prompt, 1), script=script)
            written = write(core, GenerationRequest(prompt, num_rows), FixedDraft(text[:-1]), script)
            settle(core)
            if len(written.passes) != 1:
                found.faults.append(f"{num_rows} rows took {len(written.passes)} passes: no time is shown")
            elif number >= 0:
                found.add(pass_name(num_rows), 1e3 * written.seconds)


def _copy(core: EngineCore, script: ScriptedDecoder, edit: Edit, tokens: TextTokens, rounds: int, found: Found) -> None:
    """An edit that the model is made to write, behind a prompt that is cached; the first run does not count."""
    request = GenerationRequest(edit.prompt, len(edit.output))
    rates, last = [], Written()
    for number in range(-1, rounds):
        script.follow(edit.output)
        write(core, GenerationRequest(edit.prompt, 1), script=script)
        last = write(core, request, edit.draft(tokens), script)
        script.follow(None)
        settle(core)
        if last.token_ids != edit.output:
            found.faults.append(f"{edit.name}: what was written is not what was recorded: no speed is shown")
            return
        if number >= 0:
            rates.append(last.tok_s)
    found.copied.append(
        Copied(edit.name, edit.group, len(edit.prompt), len(edit.output), tuple(last.passes), tuple(rates))
    )


def _second_turns(decoder: Decoder, num_tokens: int, rounds: int, found: Found) -> None:
    """A prompt, and the same with some tokens changed in its middle, in each mode behind a first turn of its own."""
    config = decoder.config
    room = num_tokens + SPARE
    span_bytes = 2 * room * page_bytes(config, 1, decoder.weights.dtype)
    core = EngineCore(decoder, [], _config(room, span_bytes=span_bytes))
    for number in range(-1, rounds):
        for mode in ("exact", "fast", "turbo"):
            first = random_ids(num_tokens, config.vocab_size, 1000 * number + num_tokens)
            second = changed(first, config.vocab_size)
            reuse = Reuse(mode, tuple(range(SEGMENT, num_tokens + 1, SEGMENT)))
            core.reset()
            cold = write(core, GenerationRequest(first, 1, reuse=reuse))
            settle(core)
            warm = write(core, GenerationRequest(second, 1, reuse=reuse))
            settle(core)
            wrong = _reuse_fault(warm, mode, num_tokens)
            if wrong:
                found.faults.append(f"{mode} at {num_tokens:,}: {wrong}: no time is shown")
            elif number >= 0:
                found.add(turn_name(num_tokens, mode), 1e3 * warm.seconds)
            if number >= 0 and mode == "exact":
                found.add(turn_name(num_tokens, COLD), 1e3 * cold.seconds)


def _reuse_fault(warm: Written, mode: str, num_tokens: int) -> str | None:
    """Whether a second turn ran what its mode has it run: a time is told of nothing else."""
    usage, changed_at = warm.usage, num_tokens // 2
    expected = {"exact": num_tokens - changed_at, "fast": SEGMENT + 1, "turbo": CHANGED + 1}[mode]
    if usage.recomputed != expected:
        return f"{usage.recomputed} tokens were run, not {expected}"
    return None


def random_ids(count: int, vocab_size: int, seed: int) -> list[int]:
    """Token ids that stand for nothing."""
    generator = torch.Generator().manual_seed(abs(seed) * 2 + (seed < 0))
    found: list[int] = torch.randint(vocab_size, (count,), generator=generator).tolist()
    return found


def changed(token_ids: Sequence[int], vocab_size: int) -> list[int]:
    """With CHANGED others in the middle."""
    middle = len(token_ids) // 2
    new = [(each + 1) % vocab_size for each in token_ids[middle : middle + CHANGED]]
    return [*token_ids[:middle], *new, *token_ids[middle + CHANGED :]]


def _config(max_seq_len: int, *, span_bytes: int = 0, pass_times_dir: Path | None = None) -> EngineConfig:
    """Room for two prompts, so that the second turn has not to take pages from the first."""
    return EngineConfig(
        max_seq_len=max_seq_len,
        scheduler=SchedulerConfig(max_batched_tokens=CHUNK),
        span_bytes=span_bytes,
        pass_times_dir=pass_times_dir,
    )
