"""Chat completions of a loaded model."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property

from agent_runtime.errors import BadRequest, CorruptModel, TooLarge
from agent_runtime.llm.generate import Run, fault_of, follower, run_together, usage_of
from agent_runtime.llm.interface import ChatAnswer, ChatMessage, ChatRequest, ChatTokenLogprob, Prompt, ReadyPrompt
from agent_runtime.models.loader import LoadedModel
from agent_runtime.models.tokenizer import TokenizerBundle
from agent_runtime.prompt.chat_template import render_frame
from agent_runtime.request_context import ProgressListener, RequestContext, Timings
from engine import errors as engine_errors
from engine.speculation import MergeDraft
from engine.types import GenerationRequest, GenerationResult, Proposer, TokenLogprob
from repo_cache.errors import TokenizerError


def prompt_ids(text: TokenizerBundle, messages: Sequence[ChatMessage]) -> tuple[int, ...]:
    """The chat template around the messages, each text encoded apart, so that no token reaches across a border.

    What is sent again with the next question begins with the same tokens, and its KV is there. Raises BadRequest where
    the template does not take these messages, or a text cannot be encoded.
    """
    if not messages:
        raise BadRequest("there are no messages; send one at least", field="messages")
    roles = [message.role for message in messages]
    try:
        pieces = render_frame(text.template, roles)
    except CorruptModel as error:
        raise BadRequest(
            f"the model's chat template does not take messages of these roles in this order ({', '.join(roles)}): "
            f"{error}",
            field="messages",
        ) from error
    encode = text.tokenizer.encode_template
    ids = encode(pieces[0])
    for own, behind in zip(plain_ids(text, [message.text for message in messages]), pieces[1:], strict=True):
        ids += own
        ids += encode(behind)
    return tuple(ids)


def plain_ids(text: TokenizerBundle, texts: Sequence[str]) -> list[list[int]]:
    """The ids of each text, in which nothing is a control token; raises BadRequest where one cannot be encoded."""
    try:
        return [ids.tolist() for ids in text.tokenizer.encode_batch(texts)]
    except TokenizerError as error:
        raise BadRequest(f"the model cannot read this text: {error}", field="messages") from error


def draft_of(text: TokenizerBundle, prompt: Sequence[int], prediction: str, most_tokens: int) -> Proposer:
    """A draft that begins with the prediction, where there is one, and finds what is copied from the prompt.

    Of the prediction, no more than `most_tokens` can be written.
    """
    expected = None
    if prediction:
        (ids,) = plain_ids(text, [prediction])
        expected = (ids + turn_end(text))[:most_tokens]
    return MergeDraft(
        merges=[],
        original=[],
        update=prompt,
        prediction=expected,
        token_bytes=text.tokenizer.token_bytes(),
    )


def turn_end(text: TokenizerBundle) -> list[int]:
    """The token with which the model ends its turn; none where the chat template shows none."""
    behind = text.tokenizer.encode_template(render_frame(text.template, ["user", "assistant"])[-1])
    return [number for number in behind if number in text.stop_ids][:1]


NO_FILE = ""
"""The path of what an answer is about, in its trace."""


class LoadedChat:
    """A loaded model as a `ChatModel`: chats and edits that come together share its passes.

    `deadline_s` is how long an answer may take whose request does not say, the wait for its turn included.
    """

    def __init__(self, loaded: LoadedModel, deadline_s: float | None = None) -> None:
        self._loaded = loaded
        self._deadline_s = deadline_s

    @property
    def name(self) -> str:
        """The model's name in the catalogue, or its file's."""
        return self._loaded.name

    @property
    def text(self) -> TokenizerBundle:
        """Its tokenizer and its chat template."""
        return self._loaded.text

    @property
    def max_seq_len(self) -> int:
        """Tokens of prompt and answer together."""
        return self._loaded.engine.max_seq_len

    @cached_property
    def _most_characters(self) -> int:
        """No longer text fits the context, whatever its tokens are; what is longer is not even encoded."""
        return self.max_seq_len * max(map(len, self.text.tokenizer.token_bytes()))

    def answer(self, request: ChatRequest, context: RequestContext, progress: ProgressListener) -> ChatAnswer:
        """Write the answer; raises what `ChatModel.answer` names."""
        timings = Timings(progress.on_phase)
        with timings.phase("prompt"):
            generation = self._generation(request)
            draft = self._draft(request, generation) if request.draft == "copy" else None
        run, token_bytes = Run(phase_behind="decode"), self.text.tokenizer.token_bytes()
        follow = follower(progress, token_bytes, NO_FILE)
        texts = [] if follow is None else [follow(generation, 0)]
        progress.on_phase("prefill")
        started = time.perf_counter()
        try:
            run_together(self._loaded.engine, [(generation, draft)], context, progress, run, texts)
        except engine_errors.EngineError as error:
            raise fault_of(error, self.name) from error
        finished = time.perf_counter()
        first = run.first_step or finished
        timings.add({"prefill_ms": (first - started) * 1e3, "decode_ms": (finished - first) * 1e3})
        (result,) = run.results
        return ChatAnswer(
            result.text.decode("utf-8", errors="replace"),
            result.finish_reason,
            usage_of(result.usage),
            timings.total(),
            _logprobs(result, token_bytes),
        )

    def _draft(self, request: ChatRequest, generation: GenerationRequest) -> Proposer:
        prediction = (request.prediction or "")[: self._most_characters]
        return draft_of(self.text, generation.prompt_ids, prediction, generation.max_new_tokens)

    def _ready(self, prompt: Prompt) -> ReadyPrompt:
        if isinstance(prompt, ReadyPrompt):
            return prompt
        num_characters = sum(len(message.text) for message in prompt)
        if num_characters > self._most_characters:
            raise self._too_large(f"{num_characters} characters")
        return ReadyPrompt(prompt_ids(self.text, prompt))

    def _too_large(self, size: str) -> TooLarge:
        return TooLarge(
            f"the prompt's {size} leave no room for an answer in the context of {self.max_seq_len} tokens; "
            "send less, or start with a larger --context"
        )

    def _generation(self, request: ChatRequest) -> GenerationRequest:
        prompt = self._ready(request.prompt)
        room = self.max_seq_len - len(prompt.token_ids)
        if room < 1:
            raise self._too_large(f"{len(prompt.token_ids)} tokens")
        try:
            return GenerationRequest(
                prompt=prompt.token_ids,
                max_new_tokens=room if request.max_tokens is None else min(request.max_tokens, room),
                temperature=request.temperature,
                top_p=request.top_p,
                top_k=request.top_k,
                min_p=request.min_p,
                repetition_penalty=request.repetition_penalty,
                logit_bias=request.logit_bias,
                logprobs=request.logprobs,
                seed=request.seed,
                stop_ids=self.text.stop_ids,
                stop=tuple(each.encode() for each in request.stop),
                deadline_s=request.deadline_s or self._deadline_s,
                salt=request.salt,
                reuse=prompt.reuse,
            )
        except engine_errors.RequestError as error:
            raise BadRequest(str(error)) from error


def _logprobs(result: GenerationResult, token_bytes: Sequence[bytes]) -> tuple[ChatTokenLogprob, ...]:
    """Return the log-probabilities of the tokens of the answer's text, without those that ended it."""
    found: list[ChatTokenLogprob] = []
    num_bytes = 0
    for token_id, scored in zip(result.token_ids, result.logprobs, strict=False):
        if num_bytes >= len(result.text):
            break
        num_bytes += len(token_bytes[token_id])
        found.append(_logprob(scored, token_bytes))
    return tuple(found)


def _logprob(scored: TokenLogprob, token_bytes: Sequence[bytes]) -> ChatTokenLogprob:
    top = tuple((token_bytes[token_id], logprob) for token_id, logprob in scored.top)
    return ChatTokenLogprob(token_bytes[scored.token_id], scored.logprob, top)
