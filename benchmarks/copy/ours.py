"""Our engine as a contestant that drafts as an apply does, and what each forward pass drafted and accepted."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Any, NoReturn, cast

from agent_runtime.apply.pipeline import Applier
from agent_runtime.errors import HunkError, TooLarge
from agent_runtime.llm.merger import ModelMerger, warm
from agent_runtime.models.config import LoadOptions, ModelSettings
from agent_runtime.models.loader import LoadedModel
from agent_runtime.types import ApplyRequest, ScopeName
from agent_runtime.wiring import open_model
from benchmarks.copy.cases import CopyCase
from benchmarks.engine.ours import Ours
from benchmarks.peers.protocol import Job, Speculation, parse_flags, peak_bytes, serve, take_stdout
from engine.core import EngineCore
from engine.engine import Engine
from engine.engine_config import EngineConfig
from engine.runner.step_timer import describe_machine
from engine.scheduler import SchedulerConfig
from engine.speculation.step_times import StepTimes, StepTimesFile
from engine.types import Draft, GenerationRequest, Proposer

MODEL = "model"
"""Named as the source of the token that each pass gives for free."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward pass that gave output tokens [at, at + num_tokens).

    `accepted`: sources and how many tokens of each, in the order of the output.
    """

    at: int
    num_tokens: int
    accepted: tuple[tuple[str, int], ...]

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Pass:
        return cls(raw["at"], raw["num_tokens"], tuple((source, count) for source, count in raw["accepted"]))


class Traced:
    """A proposer that notes its drafts; it passes everything on to another."""

    def __init__(self, proposer: Proposer) -> None:
        self._proposer = proposer
        self._drafts: dict[int, tuple[tuple[str, int], ...]] = {}

    def propose(self, output_ids: Sequence[int], max_tokens: int) -> Draft:
        draft = self._proposer.propose(output_ids, max_tokens)
        self._drafts[len(output_ids)] = tuple(cut(list_runs(draft), max_tokens))
        return draft

    def passes(self, times: Sequence[float]) -> list[dict[str, Any]]:
        """Return all passes of an output whose tokens came at these times: those of one pass came together."""
        found, at = [], 0
        for _, together in groupby(times):
            num_tokens = len(list(together))
            accepted = (*cut(self._drafts.get(at, ()), num_tokens - 1), (MODEL, 1))
            found.append(asdict(Pass(at, num_tokens, accepted)))
            at += num_tokens
        return found


def list_runs(draft: Draft) -> list[tuple[str, int]]:
    """Return sources and how many tokens of each."""
    return [(run.source, run.num_tokens) for run in draft.runs]


def cut(runs: Sequence[tuple[str, int]], num_tokens: int) -> Iterator[tuple[str, int]]:
    """Yield the first so many tokens of runs."""
    for source, count in runs:
        if num_tokens <= 0:
            return
        yield source, min(count, num_tokens)
        num_tokens -= count


APPLY_KV_GIB = 0.5
"""For an apply of scope `auto`, whose prompts are short."""


ROWS_ARE_FREE = StepTimes({1: 1.0, 1024: 1.0})


class AtTheDoor(Exception):
    """What an apply asks of the engine, which is not asked."""

    def __init__(self, request: GenerationRequest, proposer: Proposer | None) -> None:
        super().__init__()
        self.request = request
        self.proposer = proposer


class Door:
    """Stands where the engine does for a `ModelMerger`, and runs nothing."""

    def __init__(self, max_seq_len: int) -> None:
        self.max_seq_len = max_seq_len

    def generate(self, request: GenerationRequest, proposer: Proposer | None = None) -> NoReturn:
        """Raises AtTheDoor."""
        raise AtTheDoor(request, proposer)


class CopyOurs(Ours):
    """One engine that copies, and another on the same weights that applies."""

    def __init__(self, core: EngineCore, loaded: LoadedModel) -> None:
        super().__init__(core)
        self._loaded = loaded
        self._merger = ModelMerger(loaded)
        self._at_door = ModelMerger(replace(loaded, engine=cast(Engine, Door(core.max_seq_len))))
        self._cases: dict[str, CopyCase] = {}

    def prepare(self, raw: dict[str, Any]) -> dict[str, Any]:
        """Take a case: what its apply would ask, with the time that it took to find out.

        Where prompt and answer do not fit the context, why.
        """
        case = CopyCase(**raw)
        self._cases[case.name] = case
        began = time.perf_counter()
        try:
            request = self._ask_apply(case).request
        except TooLarge as error:
            return {"too_large": str(error)}
        seconds = time.perf_counter() - began
        expected = self._loaded.text.tokenizer.encode(case.after)
        return {"prompt_ids": list(request.prompt_ids), "expected_tokens": len(expected), "prepare_seconds": seconds}

    def chat(self, asked: str) -> dict[str, Any]:
        """Return the prompt of a message that has nothing to do with any file."""
        text = self._loaded.text
        rendered = text.template.render([{"role": "user", "content": asked}])
        return {"prompt_ids": text.tokenizer.encode_template(rendered)}

    def reference(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Return what an apply of the case would get: ids up to where the answer ends, and its text.

        At most `most_tokens`; one that takes more than `most_passes` is no copy, and is given up.
        """
        door = self._ask_apply(self._cases[asked["case"]])
        most = min(door.request.max_new_tokens, asked["most_tokens"])
        request_id = self._core.add(replace(door.request, salt=asked["salt"], max_new_tokens=most), door.proposer)
        num_passes = 0
        while num_passes < asked["most_passes"]:
            for output in self._step():
                num_passes += output.step is not None and bool(output.step.token_ids)
                if (result := output.result) is not None:
                    text = result.text.decode("utf-8", errors="replace")
                    return {"token_ids": list(result.token_ids), "text": text, "finish_reason": result.finish_reason}
        self._core.cancel(request_id)
        return {"gave_up": True}

    def proposer(self, speculation: Speculation) -> Proposer | None:
        """Who drafts for the case that is named."""
        return self._ask_apply(self._cases[speculation["case"]]).proposer if speculation else None

    def run(self, raw: dict[str, Any]) -> list[dict[str, Any]]:
        """Run a job; who drafts for its requests is ready when it begins."""
        job = Job.from_json(raw)
        ready = [self.proposer(job.speculation) for _ in job.arrivals]
        return self._run(job, ready)

    def verify(self, asked: dict[str, Any]) -> list[tuple[int, list[float]]]:
        """As it is there, with rows that cost nothing, so that all of a draft is run, whatever may be lost."""
        kept = StepTimes(self._core.times.seconds)
        self._core.times.replace(ROWS_ARE_FREE)
        try:
            return super().verify(asked)
        finally:
            self._core.times.replace(kept)

    def trace(self, raw: dict[str, Any]) -> list[dict[str, Any]]:
        """Run a job's only request, and return for each pass what was drafted from where, and what was accepted."""
        job = Job.from_json(raw)
        proposer = self.proposer(job.speculation)
        assert proposer is not None
        noting = Traced(proposer)
        (answer,) = self._run(job, [noting])
        return noting.passes(answer["times"])

    def apply(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Run one whole apply by the model, with nothing cached but what all prompts begin with."""
        case = self._cases[asked["case"]]
        scope: ScopeName = asked["scope"]
        self._loaded.engine.forget_cached()
        warm(self._loaded)
        began = time.perf_counter()
        try:
            result = Applier(lambda: self._merger).apply(_make_request(case, scope))
        except HunkError as error:
            failed = {"status": f"failed: {error}", "exact": False, "forwards": 0, "prompt": 0, "completion": 0}
            return failed | {"seconds": time.perf_counter() - began}
        seconds = time.perf_counter() - began
        return {
            "seconds": seconds,
            "status": result.status,
            "exact": result.file.merged == case.after,
            "forwards": result.usage.forwards,
            "prompt": result.usage.prompt,
            "completion": result.usage.completion,
        }

    def _ask_apply(self, case: CopyCase) -> AtTheDoor:
        try:
            Applier(lambda: self._at_door).apply(_make_request(case, "file"))
        except AtTheDoor as door:
            return door
        raise AssertionError("the model was not asked")


def _make_request(case: CopyCase, scope: ScopeName) -> ApplyRequest:
    return ApplyRequest(
        case.before.encode(), case.edit, path=case.path, format="lazy", mode="model", scope=scope, decide="generate"
    )


def _read_pass_times(settings: ModelSettings, core: EngineCore) -> StepTimes:
    """The times of passes that the engine of an apply has measured, or read, so that drafts are as long as there."""
    folder, device = settings.cache_dir / "pass-times", core.model.weights.device
    kept = StepTimesFile(folder, core.model.fingerprint.hex(), describe_machine(device)).read()
    assert kept is not None, f"nothing is kept in {folder}"
    return kept


def main() -> None:
    options, channel = parse_flags(__doc__), take_stdout()
    settings = ModelSettings.from_env(os.environ)
    loaded = open_model(options.model, settings, LoadOptions(kv_gib=APPLY_KV_GIB))
    one_at_a_time = EngineConfig(max_seq_len=options.context, scheduler=SchedulerConfig(max_num_seqs=1))
    core = EngineCore(loaded.engine.model, loaded.text.tokenizer.token_bytes(), one_at_a_time)
    core.times.replace(_read_pass_times(settings, core))
    contestant = CopyOurs(core, loaded)
    operations = {
        name: getattr(contestant, name)
        for name in ("run", "prepare", "chat", "reference", "trace", "apply", "verify", "margin")
    }
    serve(channel, operations | {"peak_bytes": peak_bytes}, {"version": "Hunk", "abilities": ["arrivals", "prefix"]})


if __name__ == "__main__":
    main()
