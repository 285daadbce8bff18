"""One stream through an engine's core, stepped in this process: what it wrote, in how many passes, and when."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from benchmarks.gpu.script import ScriptedDecoder
from engine.core import EngineCore
from engine.types import GenerationRequest, GenerationUsage, Proposer


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
        """Tokens a second behind the first pass that gave any."""
        behind = len(self.token_ids) - (self.passes[0][1] + 1)
        return behind / (self.seconds - self.first_s)


def write(
    core: EngineCore,
    request: GenerationRequest,
    proposer: Proposer | None = None,
    script: ScriptedDecoder | None = None,
) -> Written:
    """Run one request to its end; `script`, the core's model, is told before each pass how much it has written."""
    written, num_written = Written(), 0
    began = time.perf_counter()
    request_id = core.add(request, proposer)
    while core.has_pending_work():
        if script is not None:
            script.begin_pass(num_written)
        for output in core.step():
            if output.error is not None:
                raise output.error
            if output.id == request_id and output.step is not None and output.step.token_ids:
                now = time.perf_counter() - began  # the tokens are on the host: the device is done with the pass
                written.first_s = written.first_s or now
                num_written += len(output.step.token_ids)
                written.passes.append((output.step.num_drafted, output.step.num_accepted))
            if output.id == request_id and output.result is not None:
                written.seconds = time.perf_counter() - began
                written.token_ids, written.usage = output.result.token_ids, output.result.usage
                return written
    raise AssertionError("the request gave nothing")


def settle(core: EngineCore) -> None:
    """Let it do what it does while nobody waits: graphs are captured then."""
    while core.has_pending_work():
        core.step()
