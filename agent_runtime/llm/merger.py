"""Merges an edit by asking the model for the regions that the edit can touch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from agent_runtime.errors import BadFile, BadRequest, TooLarge
from agent_runtime.llm.chat import LoadedChat
from agent_runtime.llm.generate import RunResults, convert_usage, make_follower, run_requests, translate_error
from agent_runtime.llm.interface import ModelChoice, ModelMerge, ModelTask, build_reuse, resolve_reuse_mode
from agent_runtime.llm.questions import (
    FileEncoder,
    Question,
    build_questions,
    build_whole_scope,
    describe_scope,
    find_scope,
)
from agent_runtime.llm.scorer import (
    MAX_SCORED,
    AnswerScore,
    can_be_chosen,
    choose_reading,
    find_valid_candidates,
    score_answers,
)
from agent_runtime.models.loader import LoadedModel
from agent_runtime.models.tokenizer import TokenizerBundle
from agent_runtime.prompt.builder import ApplyPrompt, TextEncoder, build_prompt, encode_shared_prefix
from agent_runtime.request_context import ProgressListener, RequestContext, Timings
from agent_runtime.types import ApplyRequest, ReuseName, Usage, sum_usage
from agent_runtime.workspace.index import TokenIndex
from editor.scope import Scope, cut, splice
from editor.scope.regions import check_region_kept
from editor.types import Candidate, Check, Unresolved
from engine import errors as engine_errors
from engine.errors import DoesNotFit
from engine.reuse import ReuseMode
from engine.speculation import MergeDraft
from engine.types import GenerationRequest, Proposer
from repo_cache.errors import TokenizerError

if TYPE_CHECKING:
    from agent_runtime.telemetry.engine_metrics import EngineReport

MAX_MERGES = 3
"""Readings from which a draft is made; the model rarely writes one of the others."""


def build_draft(question: Question, prompt: ApplyPrompt, encoder: TextEncoder, text: TokenizerBundle) -> Proposer:
    """Return a draft of the answer to a question; it ends with the prompt's closing tag."""
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
"""If the regions were too small, the model is asked for the whole file, unless it has more lines: that would cost far
more than the regions did."""


@dataclass(frozen=True, slots=True)
class _WrittenFile:
    """The whole file with the model's answers for a scope. `kept`: the check that they keep the ends of the regions."""

    text: str
    truncated: bool
    kept: Check

    @property
    def is_valid(self) -> bool:
        return self.kept.ok and not self.truncated


@dataclass(frozen=True, slots=True)
class _PreparedQuestion:
    """A question with its prompt."""

    question: Question
    prompt: ApplyPrompt
    encoder: FileEncoder


class ModelMerger:
    """Merges edits with a loaded model. Concurrent edits share the model's passes.

    deadline_s: limit of one edit, including the wait in the queue; None: no limit. reuse: the mode of requests that
    name none. files: finds the tokens of files, so that they need not be encoded.
    """

    scores_all = False
    """Whether candidates are scored that can no longer be chosen, as data for a training."""

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
        """The model's name in the catalogue, or the name of its file."""
        return self._loaded.name

    def chat(self) -> LoadedChat:
        """Return the same model for chats."""
        return self._chat

    @property
    def fault(self) -> Exception | None:
        """What broke the engine for good."""
        return self._loaded.engine.fault

    def reports(self) -> Sequence[EngineReport]:
        """Return the counts of the engine, none once it is closed."""
        from agent_runtime.telemetry.engine_metrics import report_engine  # Prometheus' client is for the service

        try:
            return (report_engine(self._loaded.engine.stats()),)
        except engine_errors.EngineClosed:
            return ()

    def close(self) -> None:
        """Stop after the running step; running merges fail with ModelUnavailable."""
        self._loaded.engine.close()
        if self._files is not None:
            self._files.close()

    def merge(self, task: ModelTask, context: RequestContext, progress: ProgressListener) -> ModelMerge:
        """Have the model write the regions that the edit can touch; raises what `Merger.merge` raises.

        An answer that was cut, or does not keep the lines at the ends of its region, shows that the region was too
        small. Then the model is asked for the whole file, unless that is long; usage and timings count both.
        The time limit of writing is one for both.
        """
        timings, run = Timings(progress.on_phase), RunResults(write_seconds=task.request.max_write_seconds)
        with timings.phase("scope"):
            scope = find_scope(task)
        written = self._write(task, scope, context, progress, run, timings)
        if not written.is_valid and not scope.whole and scope.num_lines <= MAX_LINES_AGAIN:
            with suppress(TooLarge):  # the first answer is kept, and its check says what is wrong
                whole = build_whole_scope(task)
                written, scope = self._write(task, whole, context, progress, run, timings), whole
        return ModelMerge(
            text=written.text,
            truncated=written.truncated,
            usage=sum_usage([convert_usage(result.usage) for result in run.results]),
            timings=timings.by_phase,
            scope=describe_scope(scope),
            checks=() if scope.whole else (written.kept,),
        )

    def choose(self, task: ModelTask, context: RequestContext, progress: ProgressListener) -> ModelChoice | ModelMerge:
        """Have the model score the task's candidates and choose one; raises what `merge` raises.

        If none is likely enough, or two are nearly equally likely, none is chosen, and the model writes the merge if
        the request asks for that (`Options.writes_in_doubt`); usage and timings count both.
        """
        assert isinstance(task.by_rule, Unresolved)
        candidates = task.by_rule.candidates
        timings, run = Timings(progress.on_phase), RunResults()
        with timings.phase("scope"):
            scope = find_scope(task)
        numbers = find_valid_candidates(task, scope)[:MAX_SCORED]
        may_write = task.request.writes_in_doubt
        if not numbers and may_write:
            return self.merge(task, context, progress)
        if not numbers:
            return ModelChoice(None, (), Usage(), timings.by_phase, describe_scope(scope))
        valid = [candidates[at] for at in numbers]
        scores = self.score_candidates(task, scope, valid, context, progress, run, timings)
        choice = choose_reading(valid, scores)
        readings = choice.readings
        usage = sum_usage([convert_usage(result.usage) for result in run.results])
        if choice.number is not None or not may_write:
            number = None if choice.number is None else numbers[choice.number]
            return ModelChoice(number, readings, usage, timings.by_phase, describe_scope(scope), choice.confidence)
        made = self.merge(task, context, progress)
        timings.add(made.timings)
        return replace(made, usage=sum_usage([usage, made.usage]), timings=timings.by_phase, readings=readings)

    def score_candidates(
        self,
        task: ModelTask,
        scope: Scope,
        candidates: Sequence[Candidate],
        context: RequestContext,
        progress: ProgressListener,
        run: RunResults,
        timings: Timings,
    ) -> list[list[AnswerScore]]:
        """Have the model score each candidate's text in all regions at once; a list for each region.

        If it would write the first one, or if the first one's scores say that none can be chosen, the others are not
        scored. Raises what `merge` raises.
        """
        with timings.phase("prompt"):
            asked = self._prepare_questions(task, scope, "exact")
            texts = [cut(task.text, candidate.text, scope.regions) for candidate in candidates]
            answers = [
                [self._encode_answer(regions[number], one) for regions in texts] for number, one in enumerate(asked)
            ]
        is_lazy = all(candidate.confidence is not None for candidate in candidates)  # the adapter has seen no others
        with timings.phase("score"):
            try:
                return score_answers(
                    self._loaded.engine,
                    [one.prompt for one in asked],
                    answers,
                    context,
                    progress,
                    run,
                    self._deadline_s,
                    task.request.salt,
                    self._loaded.choosing_adapter if is_lazy else None,
                    make_follower(progress, self._loaded.text.tokenizer.token_bytes(), task.request.path),
                    lambda first: self.scores_all or can_be_chosen(candidates, first),
                )
            except engine_errors.EngineError as error:
                raise translate_error(error, self.name) from error

    def _write(
        self,
        task: ModelTask,
        scope: Scope,
        context: RequestContext,
        progress: ProgressListener,
        run: RunResults,
        timings: Timings,
    ) -> _WrittenFile:
        """Ask for all regions at once, and put the answers into the file."""
        text = self._loaded.text
        with timings.phase("prompt"):
            mode = resolve_reuse_mode(task.request.reuse, self._reuse)
            asked = self._prepare_questions(task, scope, mode)
            requests = [self._build_request(one.prompt, task.request, mode) for one in asked]
            drafts: list[Proposer | None] = [None] * len(asked)
            if task.request.draft == "copy":
                drafts = [build_draft(one.question, one.prompt, one.encoder, text) for one in asked]
            follow = make_follower(progress, text.tokenizer.token_bytes(), task.request.path)
            texts = [] if follow is None else [follow(request, region) for region, request in enumerate(requests)]
        run.first_step, run.next_phase, num_before = 0.0, "decode", len(run.results)
        prompted = time.perf_counter()
        progress.on_phase("prefill")
        try:
            run_requests(self._loaded.engine, list(zip(requests, drafts, strict=True)), context, progress, run, texts)
        except engine_errors.EngineError as error:
            raise translate_error(error, self.name) from error
        finished = time.perf_counter()
        first_step = run.first_step or finished
        timings.add({"prefill_ms": (first_step - prompted) * 1e3, "decode_ms": (finished - first_step) * 1e3})
        results = run.results[num_before:]
        answers = [_decode_lines(result.text) for result in results]
        return _WrittenFile(
            text=splice(task.text, scope.regions, answers),
            truncated=any(result.finish_reason == "length" for result in results),
            kept=check_region_kept(scope.regions, answers),
        )

    def _prepare_questions(self, task: ModelTask, scope: Scope, mode: ReuseMode) -> list[_PreparedQuestion]:
        """Return the question of each region with its prompt; raises BadFile if a text cannot be encoded."""
        questions = build_questions(task, scope)
        return [self._prepare_question(question, scope.outline, task, mode) for question in questions]

    def _prepare_question(
        self, question: Question, outline: str, task: ModelTask, mode: ReuseMode
    ) -> _PreparedQuestion:
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
                span_ends=None if mode == "exact" else encoder.find_span_ends,
            )
        except TokenizerError as error:  # SmolLM2 has no token for some control characters
            raise BadFile(f"model {self.name} cannot read this file or edit: {error}") from error
        return _PreparedQuestion(question, prompt, encoder)

    def _encode_answer(self, text: str, asked: _PreparedQuestion) -> list[int]:
        try:
            return asked.encoder.encode(text + asked.prompt.stop)
        except TokenizerError as error:
            raise BadFile(f"model {self.name} cannot read a reading of this edit: {error}") from error

    def _build_request(self, prompt: ApplyPrompt, request: ApplyRequest, mode: ReuseMode) -> GenerationRequest:
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
                reuse=build_reuse(prompt, mode),
            )
        except engine_errors.RequestError as error:
            raise BadRequest(str(error)) from error


def _decode_lines(answer: bytes) -> str:
    r"""Decode an answer, and end its last line with "\n"."""
    text = answer.decode("utf-8", errors="replace")
    return text if text.endswith("\n") or not text else text + "\n"


RETAIN_SECONDS = 1e9
"""Seconds that the shared KV is kept: every edit needs it, so it is evicted last."""


def warm_up(loaded: LoadedModel) -> int:
    """Compute the KV of the prompts' shared prefix, and keep it; returns its number of tokens, 0 if it does not fit.

    Raises EngineError if the engine fails or is closed.
    """
    text, engine = loaded.text, loaded.engine
    token_ids = encode_shared_prefix(text.template, text.tokenizer, text.form)
    try:
        engine.run(GenerationRequest(prompt=token_ids, max_new_tokens=1, retain_s=RETAIN_SECONDS))
    except DoesNotFit:  # no edit fits either, and each fails with that message
        return 0
    return len(token_ids)
