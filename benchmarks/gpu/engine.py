"""The engine on a card: prefill, plain decoding, copied edits and the first token of a second turn.

The model does all of its work: the layers, the LM head over every row, the choice among the whole vocabulary. Before
the choice, one number per row is overwritten on the device: the logit of the token that the text has there.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from benchmarks.engine.ours import FixedDraft
from benchmarks.gpu.bounds import (
    CHANGED,
    COLD,
    CONTEXT,
    CONTEXTS,
    PASSES,
    PLAIN,
    PROMPTS,
    SEGMENT,
    draw_parameters,
    name_pass,
    name_prefill,
    name_turn,
)
from benchmarks.gpu.edits import Edit, TextTokens
from engine.config import ModelConfig
from engine.core import EngineCore
from engine.decoder import Decoder
from engine.engine_config import EngineConfig
from engine.kv_pool import page_bytes
from engine.reuse import Reuse
from engine.scheduler import SchedulerConfig
from engine.speculation.step_times import StepTimes
from engine.types import Draft, GenerationRequest, GenerationUsage, Proposer
from engine.weights import Parameters
from kernels.accept import TopTokens, find_top_tokens

ROWS_ARE_FREE = StepTimes({1: 1.0, 1024: 1.0})

CERTAIN = 1e4
"""A logit above all others that every float dtype holds."""


class ScriptedDecoder(Decoder):
    """A decoder that writes a given text; it shares the weights and memory of another decoder.

    It serves one sequence at a time: row i of a pass stands before output token `num_written + i`.
    """

    def __init__(self, decoder: Decoder) -> None:
        self.__dict__.update(decoder.__dict__)
        self._ids: Tensor | None = None
        self._count: Callable[[], tuple[int, int]] = lambda: (0, 0)
        self._pass = self._next = 0

    def follow(self, token_ids: Sequence[int] | None) -> None:
        """Set the text to write; None: what the model chooses."""
        self._ids = None if token_ids is None else torch.tensor(token_ids, device=self.weights.device)

    def count_by(self, count: Callable[[], tuple[int, int]]) -> None:
        """Set the function that returns the number of the pass that runs, and how many tokens were written before."""
        self._count, self._pass = count, 0

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Return the decoder's logits, with that of the text's next token above all others in each row."""
        logits = super().logits(hidden)
        if self._ids is not None:
            number, num_written = self._count()
            if number != self._pass:
                self._pass, self._next = number, num_written
            ids = self._ids[self._next : self._next + len(logits)]
            self._next += len(logits)
            logits[: len(ids)].scatter_(1, ids[:, None], CERTAIN)
        return logits

    @torch.inference_mode()
    def likeliest(self, hidden: Tensor) -> TopTokens:
        return find_top_tokens(self.logits(hidden))


@dataclass(slots=True)
class Written:
    """An output. seconds: from the request to its end; first_s: to its first token, with what the first pass gave.

    passes: of those that gave tokens, how many it drafted and how many of them were accepted.
    """

    token_ids: tuple[int, ...] = ()
    seconds: float = 0.0
    first_s: float = 0.0
    passes: list[tuple[int, int]] = field(default_factory=list)
    usage: GenerationUsage = field(default_factory=GenerationUsage)

    @property
    def tok_s(self) -> float:
        """Tokens a second from the request on: the prompt is to be cached."""
        return len(self.token_ids) / self.seconds

    @property
    def decode_tok_s(self) -> float:
        """Tokens a second after the first pass that gave any."""
        behind = len(self.token_ids) - (self.passes[0][1] + 1)
        return behind / (self.seconds - self.first_s)


def write(
    core: EngineCore,
    request: GenerationRequest,
    proposer: Proposer | None = None,
    script: ScriptedDecoder | None = None,
) -> Written:
    """Run one request to its end; `script` is the core's model, if that writes a given text."""
    written = Written()
    began = time.perf_counter()
    request_id = core.add(request, proposer)
    if script is not None:
        state = core._live[request_id][1]
        script.count_by(lambda: (core.num_passes, len(state.output_ids)))
    while core.has_pending_work():
        for output in core.step():
            if output.error is not None:
                raise output.error
            if output.id == request_id and output.step is not None and output.step.token_ids:
                now = time.perf_counter() - began  # the tokens are on the host: the device is done with the pass
                written.first_s = written.first_s or now
                written.passes.append((output.step.num_drafted, output.step.num_accepted))
            if output.id == request_id and output.result is not None:
                written.seconds = time.perf_counter() - began
                written.token_ids, written.usage = output.result.token_ids, output.result.usage
                return written
    raise AssertionError("the request gave nothing")


def settle(core: EngineCore) -> None:
    """Run the core's idle work, such as the capture of graphs."""
    while core.has_pending_work():
        core.step()


NUM_LAYERS, VOCAB_SIZE = 2, 4096
PROMPT_LEN, NUM_NEW = 700, 96
WRONG_EVERY = 7
"""Every seventh token of the draft is wrong, so that passes end in its middle."""


class Noised:
    """Drafts a text with some wrong tokens."""

    def __init__(self, token_ids: Sequence[int], vocab_size: int) -> None:
        self._token_ids = [
            (each + 1) % vocab_size if at % WRONG_EVERY == WRONG_EVERY - 1 else each
            for at, each in enumerate(token_ids)
        ]

    def propose(self, output_ids: Sequence[int], max_tokens: int) -> Draft:
        return Draft.from_tokens(self._token_ids[len(output_ids) :][:max_tokens], hazard=1e-9)


def find_fault(config: ModelConfig, device: torch.device, seed: int) -> str | None:
    """Return where the device's output differs from the CPU's with a small model of this shape; None if nowhere."""
    layers = config.layers[:NUM_LAYERS]
    small = replace(config, layers=layers, vocab_size=min(VOCAB_SIZE, config.vocab_size), max_positions=2048)
    on_cpu = draw_parameters(small, torch.float32, torch.device("cpu"), seed)
    on_device = Parameters(small, torch.float32, device, on_cpu.slots().__getitem__)
    prompt = torch.randint(small.vocab_size, (PROMPT_LEN,), generator=torch.Generator().manual_seed(seed)).tolist()
    expected = _write_output(Decoder(on_cpu), prompt, None)
    decoder = Decoder(on_device)
    for name, draft in (("token by token", None), ("with drafts", Noised(expected, small.vocab_size))):
        found = _write_output(decoder, prompt, draft)
        if found != expected:
            at = next(at for at, (one, other) in enumerate(zip(found, expected, strict=True)) if one != other)
            return f"{name}, it parts from the CPU's output at token {at} of {NUM_NEW} (seed {seed})"
    return None


def _write_output(decoder: Decoder, prompt: Sequence[int], proposer: Proposer | None) -> tuple[int, ...]:
    core = EngineCore(decoder, [], EngineConfig(max_seq_len=2048))
    return write(core, GenerationRequest(prompt, NUM_NEW), proposer).token_ids


NUM_PLAIN = 256
CHUNK = 8192
"""Prompt tokens of one pass: enough to fill a card."""

SPARE = 1024


@dataclass(frozen=True, slots=True)
class Copied:
    """One copied edit: its passes, and the tokens a second of each run."""

    name: str
    group: str
    prompt_len: int
    num_tokens: int
    passes: tuple[tuple[int, int], ...]
    tok_s: tuple[float, ...]


@dataclass(slots=True)
class Found:
    """Times or rates of each round by the names of `bounds`; the copied edits; why a figure is missing."""

    figures: dict[str, list[float]] = field(default_factory=dict)
    copied: list[Copied] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def add(self, name: str, value: float) -> None:
        self.figures.setdefault(name, []).append(value)


def measure(decoder: Decoder, load_edits: Sequence[Edit], tokens: TextTokens, rounds: int, most_context: int) -> Found:
    """Measure one model `rounds` times."""
    found = Found()
    with TemporaryDirectory() as folder:
        _measure_speeds(decoder, load_edits, tokens, rounds, Path(folder), found)
    _measure_passes(decoder, rounds, found)
    for num_tokens in CONTEXTS:
        if num_tokens <= most_context:
            gc.collect()
            torch.cuda.empty_cache()
            _measure_second_turns(decoder, num_tokens, rounds, found)
    return found


def _measure_speeds(
    decoder: Decoder, load_edits: Sequence[Edit], tokens: TextTokens, rounds: int, folder: Path, found: Found
) -> None:
    """Measure prefill, decoding and copies in one engine, which chooses draft lengths by measured step times."""
    script = ScriptedDecoder(decoder)
    longest = max([max(PROMPTS), *(len(each.prompt) + len(each.output) for each in load_edits)]) + SPARE
    core = EngineCore(script, tokens.token_bytes(), _make_config(longest, pass_times_dir=folder))
    for number in range(-1, rounds):  # the first round makes kernels and graphs, and does not count
        counts = number >= 0
        for num_tokens in PROMPTS:
            prompt = draw_ids(num_tokens, decoder.config.vocab_size, 1000 * number + num_tokens)
            seconds = write(core, GenerationRequest(prompt, 1)).seconds
            core.forget_cached()
            if counts:
                found.add(name_prefill(num_tokens), num_tokens / seconds)
        prompt = draw_ids(CONTEXT, decoder.config.vocab_size, number)
        plain = write(core, GenerationRequest(prompt, NUM_PLAIN))
        settle(core)
        if counts:
            found.add(PLAIN, plain.decode_tok_s)
    for edit in load_edits:
        _measure_copy(core, script, edit, tokens, rounds, found)


def _measure_passes(decoder: Decoder, rounds: int, found: Found) -> None:
    """Measure single passes over a token and a confirmed draft, behind a cached prompt."""
    script = ScriptedDecoder(decoder)
    core = EngineCore(script, [], _make_config(CONTEXT + max(PASSES) + SPARE))
    core.times.replace(ROWS_ARE_FREE)
    prompt = draw_ids(CONTEXT, decoder.config.vocab_size, 0)
    for number in range(-1, rounds):
        for num_rows in PASSES:
            text = draw_ids(num_rows, decoder.config.vocab_size, num_rows)
            script.follow(text)
            write(core, GenerationRequest(prompt, 1), script=script)
            written = write(core, GenerationRequest(prompt, num_rows), FixedDraft(text[:-1]), script)
            settle(core)
            if len(written.passes) != 1:
                found.faults.append(f"{num_rows} rows took {len(written.passes)} passes: no time is shown")
            elif number >= 0:
                found.add(name_pass(num_rows), 1e3 * written.seconds)


def _measure_copy(
    core: EngineCore, script: ScriptedDecoder, edit: Edit, tokens: TextTokens, rounds: int, found: Found
) -> None:
    """Measure an edit that the model is made to write, behind a cached prompt; the first run does not count."""
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


def _measure_second_turns(decoder: Decoder, num_tokens: int, rounds: int, found: Found) -> None:
    """Measure a prompt with tokens changed in its middle, in each mode behind a first turn of its own."""
    config = decoder.config
    room = num_tokens + SPARE
    span_bytes = 2 * room * page_bytes(config, 1, decoder.weights.dtype)
    core = EngineCore(decoder, [], _make_config(room, span_bytes=span_bytes))
    for number in range(-1, rounds):
        for mode in ("exact", "fast", "turbo"):
            first = draw_ids(num_tokens, config.vocab_size, 1000 * number + num_tokens)
            second = change_middle(first, config.vocab_size)
            reuse = Reuse(mode, tuple(range(SEGMENT, num_tokens + 1, SEGMENT)))
            core.reset()
            cold = write(core, GenerationRequest(first, 1, reuse=reuse))
            settle(core)
            warm = write(core, GenerationRequest(second, 1, reuse=reuse))
            settle(core)
            wrong = _find_reuse_fault(warm, mode, num_tokens)
            if wrong:
                found.faults.append(f"{mode} at {num_tokens:,}: {wrong}: no time is shown")
            elif number >= 0:
                found.add(name_turn(num_tokens, mode), 1e3 * warm.seconds)
            if number >= 0 and mode == "exact":
                found.add(name_turn(num_tokens, COLD), 1e3 * cold.seconds)


def _find_reuse_fault(warm: Written, mode: str, num_tokens: int) -> str | None:
    """Return what is wrong if a second turn did not compute the tokens that its mode computes."""
    usage, changed_at = warm.usage, num_tokens // 2
    expected = {"exact": num_tokens - changed_at, "fast": SEGMENT + 1, "turbo": CHANGED + 1}[mode]
    if usage.recomputed != expected:
        return f"{usage.recomputed} tokens were run, not {expected}"
    return None


def draw_ids(count: int, vocab_size: int, seed: int) -> list[int]:
    """Return random token ids."""
    generator = torch.Generator().manual_seed(abs(seed) * 2 + (seed < 0))
    found: list[int] = torch.randint(vocab_size, (count,), generator=generator).tolist()
    return found


def change_middle(token_ids: Sequence[int], vocab_size: int) -> list[int]:
    """Return the ids with CHANGED others in the middle."""
    middle = len(token_ids) // 2
    new = [(each + 1) % vocab_size for each in token_ids[middle : middle + CHANGED]]
    return [*token_ids[:middle], *new, *token_ids[middle + CHANGED :]]


def _make_config(max_seq_len: int, *, span_bytes: int = 0, pass_times_dir: Path | None = None) -> EngineConfig:
    """Return a configuration with room for two prompts, so that the second turn takes no pages from the first."""
    return EngineConfig(
        max_seq_len=max_seq_len,
        scheduler=SchedulerConfig(max_batched_tokens=CHUNK),
        span_bytes=span_bytes,
        pass_times_dir=pass_times_dir,
    )
