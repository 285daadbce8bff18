"""Our engine as a contestant that drafts as an apply does."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import Any, NoReturn, cast

from agent_runtime.apply.pipeline import Applier
from agent_runtime.errors import TooLarge
from agent_runtime.llm.merger import ModelMerger
from agent_runtime.models.config import ModelSettings
from agent_runtime.models.loader import LoadedModel
from agent_runtime.types import ApplyRequest
from benchmarks.copy.cases import CopyCase
from benchmarks.engine.ours import Ours, open_core
from benchmarks.peers.protocol import Job, Speculation, parse_flags, peak_bytes, serve, take_stdout
from engine.core import EngineCore
from engine.engine import Engine
from engine.engine_config import EngineConfig
from engine.scheduler import SchedulerConfig
from engine.types import GenerationRequest, Proposer


class CapturedRequest(Exception):
    """Raised in place of a generation; holds what an apply asked the engine for."""

    def __init__(self, request: GenerationRequest, proposer: Proposer | None) -> None:
        super().__init__()
        self.request = request
        self.proposer = proposer


class RequestCapture:
    """An engine for a `ModelMerger` that runs nothing."""

    def __init__(self, max_seq_len: int) -> None:
        self.max_seq_len = max_seq_len

    def generate(self, request: GenerationRequest, proposer: Proposer | None = None) -> NoReturn:
        """Raises CapturedRequest."""
        raise CapturedRequest(request, proposer)


class CopyOurs(Ours):
    """One engine that copies files."""

    def __init__(self, core: EngineCore, loaded: LoadedModel) -> None:
        super().__init__(core)
        self._loaded = loaded
        self._capturing = ModelMerger(replace(loaded, engine=cast(Engine, RequestCapture(core.max_seq_len))))
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
        captured = self._ask_apply(self._cases[asked["case"]])
        most = min(captured.request.max_new_tokens, asked["most_tokens"])
        request_id = self._core.add(
            replace(captured.request, salt=asked["salt"], max_new_tokens=most), captured.proposer
        )
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

    def _ask_apply(self, case: CopyCase) -> CapturedRequest:
        request = ApplyRequest(
            case.before.encode(),
            case.edit,
            path=case.path,
            format="lazy",
            mode="model",
            scope="file",
            decide="generate",
        )
        try:
            Applier(lambda: self._capturing).apply(request)
        except CapturedRequest as captured:
            return captured
        raise AssertionError("the model was not asked")


def main() -> None:
    options, channel = parse_flags(__doc__), take_stdout()
    one_at_a_time = EngineConfig(
        max_seq_len=options.context,
        scheduler=SchedulerConfig(max_num_seqs=1),
        # so that drafts are as long as in an apply
        pass_times_dir=ModelSettings.from_env(os.environ).cache_dir / "pass-times",
    )
    core, loaded = open_core(options.model, options.quantize, lambda _: one_at_a_time)
    contestant = CopyOurs(core, loaded)
    operations = {name: getattr(contestant, name) for name in ("run", "prepare", "chat", "reference", "margin")}
    version = f"Hunk ({loaded.engine.model.precision.describe()})"
    hello = {"version": version, "abilities": ["arrivals", "prefix"]}
    serve(channel, operations | {"peak_bytes": peak_bytes}, hello)


if __name__ == "__main__":
    main()
