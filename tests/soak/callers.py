"""Callers of the soak: threads and tasks that draw a call, submit it, and read, close, drop or cancel its stream."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence

from engine.engine import Engine
from engine.errors import Cancelled, DeadlineExceeded, EngineError, EngineFault, QueueFull, RequestError
from engine.speculation import MergeDraft
from engine.types import Draft, GenerationResult, GenerationStep, Proposer
from tests.engine.cores import RandomDraft
from tests.soak.ledger import Ledger
from tests.soak.traffic import Call, Traffic


class BrokenDrafter:
    """A caller's code that raises."""

    def propose(self, output_ids: Sequence[int], max_tokens: int) -> Draft:
        raise LookupError("this drafter is broken")


def call_from_thread(engine: Engine, traffic: Traffic, ledger: Ledger) -> None:
    """Call until the traffic ends."""
    while (call := traffic.draw()) is not None:
        ledger.begin(call)
        steps: list[GenerationStep] = []
        result = None
        try:
            stream = engine.generate(call.request, _proposer(engine, call))
            if call.ending == "cancel":
                _cancel_later(stream.cancel, call.delay_s)
            outcome = "finished"
            for step in stream:
                steps.append(step)
                if call.ending in ("close", "drop") and len(steps) > call.num_steps:
                    outcome = "closed" if call.ending == "close" else "dropped"
                    break
            result = stream.result if outcome == "finished" else None
            if call.ending == "close":
                stream.close()
            del stream  # which is how it is dropped
        except EngineError as error:
            outcome = _outcome(error)
        ledger.end(call, outcome, steps, result)
        time.sleep(_pause(call, outcome))


async def call_from_loop(engine: Engine, traffic: Traffic, ledger: Ledger) -> None:
    """The same in an event loop; to cancel is to cancel the task that reads."""
    while (call := traffic.draw()) is not None:
        ledger.begin(call)
        steps: list[GenerationStep] = []
        reading = asyncio.create_task(_read(engine, call, steps))
        if call.ending == "cancel":
            asyncio.get_running_loop().call_later(call.delay_s, reading.cancel)
        result = None
        try:
            outcome, result = await reading
        except asyncio.CancelledError:
            outcome = "cancelled"
        except EngineError as error:
            outcome = _outcome(error)
        del reading
        ledger.end(call, outcome, steps, result)
        await asyncio.sleep(_pause(call, outcome))


async def _read(engine: Engine, call: Call, steps: list[GenerationStep]) -> tuple[str, GenerationResult | None]:
    stream = await engine.agenerate(call.request, _proposer(engine, call))
    async for step in stream:
        steps.append(step)
        if call.ending in ("close", "drop") and len(steps) > call.num_steps:
            if call.ending == "close":
                await stream.aclose()
            return ("closed" if call.ending == "close" else "dropped"), None
    return "finished", stream.result


def _proposer(engine: Engine, call: Call) -> Proposer | None:
    if call.drafter == "copy":
        return MergeDraft(merges=[], original=call.request.prompt_ids)
    if call.drafter == "random":
        return RandomDraft([], engine.model.config.vocab_size, call.seed)
    return BrokenDrafter() if call.drafter == "raising" else None


def _cancel_later(cancel: Callable[[], None], delay_s: float) -> None:
    if delay_s == 0.0:
        cancel()
        return
    timer = threading.Timer(delay_s, cancel)
    timer.daemon = True
    timer.start()


def _pause(call: Call, outcome: str) -> float:
    return call.backoff_s if outcome == "queue_full" else call.pause_s


def _outcome(error: EngineError) -> str:
    """What an error stands for; one that nobody provoked stands for itself."""
    if isinstance(error, QueueFull):
        return "queue_full"
    if isinstance(error, RequestError):
        return "refused"
    if isinstance(error, Cancelled):
        return "cancelled"
    if isinstance(error, DeadlineExceeded):
        return "deadline"
    if isinstance(error, EngineFault) and isinstance(error.__cause__, LookupError):
        return "fault"
    return f"{type(error).__name__}: {error}"
