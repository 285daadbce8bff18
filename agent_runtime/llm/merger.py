"""Merges an edit by asking the model for the regions that it can touch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from agent_runtime.errors import BadFile, BadRequest, TooLarge
from agent_runtime.llm.chat import LoadedChat
from agent_runtime.llm.generate import Follow, Run, fault_of, follower, run_together, usage_of
from agent_runtime.llm.interface import ModelChoice, ModelMerge, ModelTask, resolve_reuse_mode, reuse_of
from agent_runtime.llm.questions import FileEncoder, Question, describe_scope, questions, scope_of, whole_file
from agent_runtime.llm.scorer import best_of, score_answers, sound, weigh
from agent_runtime.models.loader import LoadedModel
from agent_runtime.models.tokenizer import TokenizerBundle
from agent_runtime.prompt import ApplyPrompt, TextEncoder, build_prompt, encode_shared_prefix
from agent_runtime.request_context import ProgressListener, RequestContext
from agent_runtime.types import ApplyRequest, ReuseName, ScoredReading, Usage, is_as_sure, total_usage
from agent_runtime.workspace.index import TokenIndex
from editor.scope import Scope, check_region_kept, cut, splice
from editor.types import Candidate, Check, Unresolved
from engine import errors as engine_errors
from engine.engine import EngineStats
from engine.errors import DoesNotFit
from engine.reuse import ReuseMode
from engine.speculation import MergeDraft
from engine.types import GenerationRequest, Proposer
from repo_cache.errors import TokenizerError

MAX_MERGES = 3
"""Readings that a draft is made from; the others are rarely what the model writes."""


def draft_of(question: Question, prompt: ApplyPrompt, encoder: TextEncoder, text: TokenizerBundle) -> Proposer:
    """A draft for the answer to a question, which ends with the prompt's closing tag."""
    encode = encoder.encode
    expected = question.prediction
    return MergeDraft(
        merges=[encode(merge + prompt.stop) for merge in question.merges[:MAX_MERGES]],
        original=prompt.file_ids,
        update=prompt.edit_ids,
        prediction=None if expected is None or expected in question.merges else encode(expected + prompt.stop),
        token_bytes=text.tokenizer.token_bytes(),
    )


SPARE_TOKENS = 256
"""Tokens by which an answer may exceed file and edit together before it is cut."""

MAX_LINES_AGAIN = 500
"""Files up to so many lines are asked for whole where the regions turn out to be too small; a longer one is rejected:
it would cost far more than the regions did."""


@dataclass(slots=True)
class _Clock:
    """Milliseconds by phase; asking again adds to them."""

    by_phase: dict[str, float] = field(default_factory=dict)

    def add(self, **seconds: float) -> None:
        for name, value in seconds.items():
            self.by_phase[f"{name}_ms"] = self.by_phase.get(f"{name}_ms", 0.0) + value * 1e3


@dataclass(frozen=True, slots=True)
class _Written:
    """The model's result for a scope: the whole file, and whether it can be that."""

    text: str
    truncated: bool
    kept: Check

    @property
    def is_sound(self) -> bool:
        return self.kept.ok and not self.truncated


@dataclass(frozen=True, slots=True)
class _Asked:
    """A question as the model gets it."""

    question: Question
    prompt: ApplyPrompt
    encoder: FileEncoder


class ModelMerger:
    """One loaded model, as the apply pipeline uses it: edits that come together share the model's passes.

    `deadline_s` is how long one may take, the wait for its turn included; None: as long as it takes. `reuse` is for
    requests that name none; `files` are those whose tokens are at hand.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        deadline_s: float | None = None,
        *,
        reuse: ReuseName = "exact",
        files: TokenIndex | None = None,
    ) -> None:
        self._loaded = loaded
        self._deadline_s = deadline_s
        self._reuse = reuse
        self._files = files
        self._chat = LoadedChat(loaded, deadline_s)

    @property
    def name(self) -> str:
        """The model's name in the catalogue, or its file's."""
        return self._loaded.name

    def chat(self) -> LoadedChat:
        """The same model, to be asked for answers in a chat."""
        return self._chat

    def stats(self) -> EngineStats | None:
        """Return the engine's statistics, None once it is closed."""
        try:
            return self._loaded.engine.stats()
        except engine_errors.EngineClosed:
            return None

    def close(self) -> None:
        """Stop after the running step; edits that are being merged fail with ModelUnavailable."""
        self._loaded.engine.close()
        if self._files is not None:
            self._files.close()

    def merge(self, task: ModelTask, context: RequestContext, progress: ProgressListener) -> ModelMerge:
        """Have the model write what the edit can touch; raises what `Merger.merge` names.

        Where an answer shows that its region was too small (it was cut, or does not keep the lines at the region's
        ends), a file that is not much longer is asked for whole; usage and timings count both.
        """
        clock, run = _Clock(), Run()
        started = time.perf_counter()
        progress.on_phase("scope")
        scope = scope_of(task)
        clock.add(scope=time.perf_counter() - started)
        written = self._write(task, scope, context, progress, run, clock)
        if not written.is_sound and not scope.whole and scope.num_lines <= MAX_LINES_AGAIN:
            with suppress(TooLarge):  # then the answer that there is says what is wrong with it
                whole = whole_file(task)
                written, scope = self._write(task, whole, context, progress, run, clock), whole
        return ModelMerge(
            text=written.text,
            truncated=written.truncated,
            usage=total_usage([usage_of(result.usage) for result in run.results]),
            timings=clock.by_phase,
            scope=describe_scope(scope),
            checks=() if scope.whole else (written.kept,),
        )

    def choose(self, task: ModelTask, context: RequestContext, progress: ProgressListener) -> ModelChoice | ModelMerge:
        """Have the model say which of the task's candidates it would write; raises what `merge` raises.

        Where it would write none of them, or two are nearly as likely, it writes the merge instead, if the request
        takes what a model wrote; usage and timings count both.
        """
        assert isinstance(task.by_rule, Unresolved)
        candidates = task.by_rule.candidates
        clock, run = _Clock(), Run()
        started = time.perf_counter()
        progress.on_phase("scope")
        scope = scope_of(task)
        clock.add(scope=time.perf_counter() - started)
        numbers, may_write = sound(task, scope), is_as_sure("model", task.request.least_certainty)
        if not numbers and may_write:
            return self.merge(task, context, progress)
        if not numbers:
            return ModelChoice(None, (), Usage(), clock.by_phase, describe_scope(scope))
        readings = self._score_candidates(
            task, scope, [candidates[at] for at in numbers], context, progress, run, clock
        )
        usage = total_usage([usage_of(result.usage) for result in run.results])
        best = best_of(readings)
        if best is not None or not may_write:
            number = None if best is None else numbers[best]
            return ModelChoice(number, readings, usage, clock.by_phase, describe_scope(scope))
        made = self.merge(task, context, progress)
        for name, milliseconds in made.timings.items():
            clock.by_phase[name] = clock.by_phase.get(name, 0.0) + milliseconds
        return replace(made, usage=total_usage([usage, made.usage]), timings=clock.by_phase, readings=readings)

    def _score_candidates(
        self,
        task: ModelTask,
        scope: Scope,
        candidates: Sequence[Candidate],
        context: RequestContext,
        progress: ProgressListener,
        run: Run,
        clock: _Clock,
    ) -> tuple[ScoredReading, ...]:
        """Ask about all regions at once how likely each candidate's text is there."""
        started = time.perf_counter()
        progress.on_phase("prompt")
        asked = [self._build_question(question, scope.outline, task, "exact") for question in questions(task, scope)]
        texts = [cut(task.text, candidate.text, scope.regions) for candidate in candidates]
        answers = [[self._answer(regions[number], one) for regions in texts] for number, one in enumerate(asked)]
        prompts = [one.prompt for one in asked]
        prompted = time.perf_counter()
        progress.on_phase("score")
        follow = self._follow(task, progress)
        try:
            logprobs = score_answers(
                self._loaded.engine,
                prompts,
                answers,
                context,
                progress,
                run,
                self._deadline_s,
                task.request.salt,
                follow,
            )
        except engine_errors.EngineError as error:
            raise fault_of(error, self.name) from error
        clock.add(prompt=prompted - started, score=time.perf_counter() - prompted)
        return weigh(candidates, logprobs)

    def _write(
        self,
        task: ModelTask,
        scope: Scope,
        context: RequestContext,
        progress: ProgressListener,
        run: Run,
        clock: _Clock,
    ) -> _Written:
        """Ask for all regions at once, and put the answers into the file."""
        started = time.perf_counter()
        progress.on_phase("prompt")
        mode = resolve_reuse_mode(task.request.reuse, self._reuse)
        asked = [self._build_question(question, scope.outline, task, mode) for question in questions(task, scope)]
        requests = [self._generation(one.prompt, task.request, mode) for one in asked]
        drafts = [
            draft_of(one.question, one.prompt, one.encoder, self._loaded.text) if task.request.draft == "copy" else None
            for one in asked
        ]
        follow = self._follow(task, progress)
        texts = [] if follow is None else [follow(request, region) for region, request in enumerate(requests)]
        prompted, run.first_step, run.phase_behind, num_before = time.perf_counter(), 0.0, "decode", len(run.results)
        progress.on_phase("prefill")
        try:
            run_together(self._loaded.engine, list(zip(requests, drafts, strict=True)), context, progress, run, texts)
        except engine_errors.EngineError as error:
            raise fault_of(error, self.name) from error
        finished = time.perf_counter()
        first_step = run.first_step or finished
        clock.add(prompt=prompted - started, prefill=first_step - prompted, decode=finished - first_step)
        results = run.results[num_before:]
        answers = [_lines(result.text) for result in results]
        return _Written(
            text=splice(task.text, scope.regions, answers),
            truncated=any(result.finish_reason == "length" for result in results),
            kept=check_region_kept(scope.regions, answers),
        )

    def _build_question(self, question: Question, outline: str, task: ModelTask, mode: ReuseMode) -> _Asked:
        text, tokenizer = question.region.text, self._loaded.text.tokenizer
        request, is_file = task.request, text == task.text
        known = self._files.find_tokens(request.path, text, request.root) if self._files and is_file else None
        try:
            encoder = FileEncoder(tokenizer, task.request.path, text, known)
            prompt = build_prompt(
                self._loaded.text.template,
                encoder,
                file_text=question.file_text,
                edit_text=question.edit_text,
                instruction=task.request.instruction,
                outline=outline,
                form=self._loaded.text.form,
                span_ends=None if mode == "exact" else encoder.span_ends,
            )
        except TokenizerError as error:  # SmolLM2 has no token for some control characters
            raise BadFile(f"model {self.name} cannot read this file or edit: {error}") from error
        return _Asked(question, prompt, encoder)

    def _follow(self, task: ModelTask, progress: ProgressListener) -> Follow | None:
        return follower(progress, self._loaded.text.tokenizer.token_bytes(), task.request.path)

    def _answer(self, text: str, asked: _Asked) -> list[int]:
        try:
            return asked.encoder.encode(text + asked.prompt.stop)
        except TokenizerError as error:
            raise BadFile(f"model {self.name} cannot read a reading of this edit: {error}") from error

    def _generation(self, prompt: ApplyPrompt, request: ApplyRequest, mode: ReuseMode) -> GenerationRequest:
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
                salt=request.salt,
                reuse=reuse_of(prompt, mode),
            )
        except engine_errors.RequestError as error:
            raise BadRequest(str(error)) from error


def _lines(answer: bytes) -> str:
    r"""An answer as lines that each end with "\n"."""
    text = answer.decode("utf-8", errors="replace")
    return text if text.endswith("\n") or not text else text + "\n"


AS_LONG_AS_IT_RUNS = 1e9
"""Seconds. Whatever is evicted, this is evicted last: every edit needs it."""


def warm(loaded: LoadedModel) -> int:
    """Have the KV of the prompts' shared part computed and kept; returns how many tokens it has, 0 if it does not fit.

    Raises EngineError where the engine fails or is closed.
    """
    text, engine = loaded.text, loaded.engine
    token_ids = encode_shared_prefix(text.template, text.tokenizer, text.form)
    try:
        engine.run(GenerationRequest(prompt=token_ids, max_new_tokens=1, retain_s=AS_LONG_AS_IT_RUNS))
    except DoesNotFit:  # no edit fits either, as each is told
        return 0
    return len(token_ids)
