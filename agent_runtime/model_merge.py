"""Merges an edit by asking the model for the whole file, drafting the answer from the file and the edit."""

from __future__ import annotations

import time

from agent_runtime.errors import (
    BadFile,
    BadRequest,
    Busy,
    Cancelled,
    DeadlinePassed,
    HunkError,
    ModelFailed,
    ModelUnavailable,
    TooLarge,
    Unsupported,
)
from agent_runtime.models.load import LoadedModel
from agent_runtime.prompt import ApplyPrompt, build_prompt
from agent_runtime.types import ApplyRequest, ModelChoice, ModelMerge, ModelTask, Usage, Watcher
from engine import errors as engine_errors
from engine.speculation import CopyDraft
from engine.streams import Stream
from engine.types import GenerationRequest, GenerationResult, GenerationUsage
from repo_cache.errors import TokenizerError

SPARE_TOKENS = 256
"""What an answer may be longer than file and edit together before it is cut: a model that runs away is stopped."""


FAULTS: dict[type[engine_errors.EngineError], tuple[type[HunkError], str]] = {
    engine_errors.DoesNotFit: (TooLarge, "start with a larger --kv-gib, or send less"),
    engine_errors.RequestError: (BadRequest, "change the request"),
    engine_errors.QueueFull: (Busy, "try again in a moment"),
    engine_errors.DeadlineExceeded: (DeadlinePassed, "send less, or start with a larger --deadline"),
    engine_errors.Cancelled: (Cancelled, "send it again if it is still wanted"),
    engine_errors.EngineClosed: (ModelUnavailable, "the service is ending, or has to be started anew"),
    engine_errors.EngineError: (ModelFailed, "try again; if it fails again, report it"),
}
"""What becomes of the engine's errors, and what to do; the first class that fits counts."""


class ModelMerger:
    """One loaded model, as the apply pipeline uses it: edits that come together share the model's passes.

    `deadline_s` is how long one may take, the wait for its turn included; None: as long as it takes.
    """

    def __init__(self, loaded: LoadedModel, deadline_s: float | None = None) -> None:
        self._loaded = loaded
        self._deadline_s = deadline_s

    @property
    def name(self) -> str:
        """The model's name in the catalogue, or its file's."""
        return self._loaded.name

    def close(self) -> None:
        """End behind the pass that runs; edits that are being merged fail with ModelUnavailable."""
        self._loaded.engine.close()

    def merge(self, task: ModelTask, watcher: Watcher) -> ModelMerge:
        """Have the model write the task's file with its edit applied; raises what `Merger.merge` names."""
        started = time.perf_counter()
        text, request = task.text, task.request
        final_newline = text.endswith("\n")
        prompt = self._prompt(text, request)
        generation = self._generation(prompt, request)
        prompted = time.perf_counter()
        result, first_step = self._run(generation, prompt, request, watcher)
        finished = time.perf_counter()
        answer = result.text.decode("utf-8", errors="replace").removesuffix("\n")
        return ModelMerge(
            text=answer + "\n" if final_newline else answer,
            truncated=result.finish_reason == "length",
            usage=usage_of(result.usage),
            timings={
                "prompt_ms": (prompted - started) * 1e3,
                "prefill_ms": (first_step - prompted) * 1e3,
                "decode_ms": (finished - first_step) * 1e3,
            },
        )

    def choose(self, task: ModelTask, watcher: Watcher) -> ModelChoice:
        """Have the model choose among the task's candidates; raises Unsupported: it comes with `deciding`."""
        raise Unsupported("this version does not support the value 'score' for the field 'decide'", field="decide")

    def _prompt(self, text: str, request: ApplyRequest) -> ApplyPrompt:
        try:
            return build_prompt(
                self._loaded.text.template,
                self._loaded.text.tokenizer,
                file_text=text.removesuffix("\n"),
                edit_text=request.edit.strip("\n"),
                instruction=request.instruction,
            )
        except TokenizerError as error:  # SmolLM2 has no token for some control characters
            raise BadFile(f"model {self.name} cannot read this file or edit: {error}") from error

    def _generation(self, prompt: ApplyPrompt, request: ApplyRequest) -> GenerationRequest:
        limit = request.max_tokens or len(prompt.file_ids) + len(prompt.edit_ids) + SPARE_TOKENS
        room = self._loaded.engine.max_seq_len - len(prompt.token_ids)
        if room < len(prompt.file_ids):
            raise TooLarge(
                f"the prompt's {len(prompt.token_ids)} tokens and an answer of about {len(prompt.file_ids)} do not fit "
                f"the context of {self._loaded.engine.max_seq_len}; split the file, send an edit that needs no model "
                "(SEARCH/REPLACE with text copied from the file), or start with a larger --context"
            )
        try:
            return GenerationRequest(
                prompt=prompt.token_ids,
                max_new_tokens=min(limit, room),
                temperature=request.temperature,
                seed=request.seed,
                stop_ids=self._loaded.text.stop_ids,
                stop=(prompt.stop.encode(),),
                deadline_s=self._deadline_s,
            )
        except engine_errors.RequestError as error:
            raise BadRequest(str(error)) from error

    def _run(
        self, generation: GenerationRequest, prompt: ApplyPrompt, request: ApplyRequest, watcher: Watcher
    ) -> tuple[GenerationResult, float]:
        """The result, and when the first pass behind the prefill ended."""
        draft = CopyDraft([prompt.file_ids, prompt.edit_ids]) if request.draft == "copy" else None
        try:
            return _watched(self._loaded.engine.generate(generation, draft), watcher)
        except engine_errors.EngineError as error:
            fault, advice = next(what for kind, what in FAULTS.items() if isinstance(error, kind))
            raise fault(f"model {self.name}: {error}; {advice}") from error


def _watched(steps: Stream, watcher: Watcher) -> tuple[GenerationResult, float]:
    num_written, first_step = 0, 0.0
    try:
        watcher.began(steps.cancel)
        while True:
            num_written += len(next(steps).token_ids)
            if num_written and not first_step:
                first_step = time.perf_counter()
            watcher.wrote(num_written)
    except StopIteration as end:
        return end.value, first_step
    finally:
        steps.close()


def usage_of(counted: GenerationUsage) -> Usage:
    """The engine's counts in the shape of the answer."""
    return Usage(
        prompt=counted.prompt,
        cached=counted.cached,
        recomputed=counted.prompt - counted.cached,
        completion=counted.completion,
        drafted=counted.drafted,
        accepted=counted.accepted,
        rejected=counted.drafted - counted.accepted,
        forwards=counted.forwards,
        prefix_hit_rate=counted.cached / counted.prompt,
    )
