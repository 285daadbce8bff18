"""Chat completions of a loaded model."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property

from agent_runtime.errors import BadRequest, CorruptModel, TooLarge
from agent_runtime.llm.generate import RunResults, convert_usage, make_follower, run_requests, translate_error
from agent_runtime.llm.interface import ChatAnswer, ChatMessage, ChatRequest, ChatTokenLogprob, EncodedPrompt, Prompt
from agent_runtime.models.loader import LoadedModel
from agent_runtime.models.tokenizer import TokenizerBundle
from agent_runtime.prompt.chat_template import render_frame
from agent_runtime.request_context import ProgressListener, RequestContext, Timings
from engine import errors as engine_errors
from engine.speculation import MergeDraft
from engine.types import GenerationRequest, GenerationResult, Proposer
from repo_cache.errors import TokenizerError


def encode_prompt(text: TokenizerBundle, messages: Sequence[ChatMessage]) -> tuple[int, ...]:
    """Encode messages with the chat template, each text alone, so that no token crosses a border between them.

    The prompt of the next question then begins with the same tokens, whose KV is cached. Raises BadRequest if the
    template does not accept these messages, or a text cannot be encoded.
    """
    if not messages:
        raise BadRequest("there are no messages; send one at least", field="messages")
    roles = [message.role for message in messages]
    try:
        pieces = render_frame(text.template, roles, folds_system=False)
    except CorruptModel as error:
        raise BadRequest(
            f"the model's chat template does not take messages of these roles in this order ({', '.join(roles)}): "
            f"{error}",
            field="messages",
        ) from error
    encode = text.tokenizer.encode_template
    ids = encode(pieces[0])
    texts = encode_texts(text, [message.text for message in messages])
    for text_ids, piece in zip(texts, pieces[1:], strict=True):
        ids += text_ids
        ids += encode(piece)
    return tuple(ids)


def encode_texts(text: TokenizerBundle, texts: Sequence[str]) -> list[list[int]]:
    """Return the ids of each text, without control tokens; raises BadRequest if one cannot be encoded."""
    try:
        return [ids.tolist() for ids in text.tokenizer.encode_batch(texts)]
    except TokenizerError as error:
        raise BadRequest(f"the model cannot read this text: {error}", field="messages") from error


def build_draft(text: TokenizerBundle, prompt: Sequence[int], prediction: str, max_tokens: int) -> Proposer:
    """Return a draft that begins with the prediction, if there is one, and finds what is copied from the prompt.

    The prediction is cut to `max_tokens`.
    """
    expected = None
    if prediction:
        (ids,) = encode_texts(text, [prediction])
        expected = (ids + find_turn_end(text))[:max_tokens]
    return MergeDraft(
        merges=[],
        original=[],
        update=prompt,
        prediction=expected,
        token_bytes=text.tokenizer.token_bytes(),
    )


def find_turn_end(text: TokenizerBundle) -> list[int]:
    """Return the token with which the model ends its turn, [] if the chat template shows none."""
    ids = text.tokenizer.encode_template(render_frame(text.template, ["user", "assistant"])[-1])
    return [token_id for token_id in ids if token_id in text.stop_ids][:1]


NO_VERSION = ""
"""Path in the trace of an answer that is about no file."""


class LoadedChat:
    """A loaded model as a `ChatModel`. Concurrent chats and edits share the model's passes.

    `deadline_s` is the limit of an answer whose request has none, including the wait in the queue.
    """

    def __init__(self, loaded: LoadedModel, deadline_s: float | None = None) -> None:
        self._loaded = loaded
        self._deadline_s = deadline_s

    @property
    def name(self) -> str:
        """The model's name in the catalogue, or the name of its file."""
        return self._loaded.name

    @property
    def text(self) -> TokenizerBundle:
        """The tokenizer and the chat template."""
        return self._loaded.text

    @property
    def max_seq_len(self) -> int:
        """Limit of prompt and answer together, in tokens."""
        return self._loaded.engine.max_seq_len

    @cached_property
    def _max_characters(self) -> int:
        """Limit of a text's length. A longer one cannot fit the context, and is not encoded."""
        return self.max_seq_len * max(map(len, self.text.tokenizer.token_bytes()))

    def answer(self, request: ChatRequest, context: RequestContext, progress: ProgressListener) -> ChatAnswer:
        """Write the answer; raises what `ChatModel.answer` raises."""
        timings = Timings(progress.on_phase)
        with timings.phase("prompt"):
            generation = self._build_request(request)
            draft = None
            if request.draft == "copy":
                prediction = (request.prediction or "")[: self._max_characters]
                draft = build_draft(self.text, generation.prompt_ids, prediction, generation.max_new_tokens)
        run, token_bytes = RunResults(next_phase="decode"), self.text.tokenizer.token_bytes()
        follow = make_follower(progress, token_bytes, NO_VERSION)
        texts = [] if follow is None else [follow(generation, 0)]
        progress.on_phase("prefill")
        started = time.perf_counter()
        try:
            run_requests(self._loaded.engine, [(generation, draft)], context, progress, run, texts)
        except engine_errors.EngineError as error:
            raise translate_error(error, self.name) from error
        finished = time.perf_counter()
        first = run.first_step or finished
        timings.add({"prefill_ms": (first - started) * 1e3, "decode_ms": (finished - first) * 1e3})
        (result,) = run.results
        return ChatAnswer(
            result.text.decode("utf-8", errors="replace"),
            result.finish_reason,
            convert_usage(result.usage),
            timings.total(),
            _collect_logprobs(result, token_bytes),
        )

    def _prepare_prompt(self, prompt: Prompt) -> EncodedPrompt:
        if isinstance(prompt, EncodedPrompt):
            return prompt
        num_characters = sum(len(message.text) for message in prompt)
        if num_characters > self._max_characters:
            raise self._make_too_large_error(f"{num_characters} characters")
        return EncodedPrompt(encode_prompt(self.text, prompt))

    def _make_too_large_error(self, size: str) -> TooLarge:
        return TooLarge(
            f"the prompt's {size} leave no room for an answer in the context of {self.max_seq_len} tokens; "
            "send less, or start with a larger --context"
        )

    def _build_request(self, request: ChatRequest) -> GenerationRequest:
        prompt = self._prepare_prompt(request.prompt)
        room = self.max_seq_len - len(prompt.token_ids)
        if room < 1:
            raise self._make_too_large_error(f"{len(prompt.token_ids)} tokens")
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


def _collect_logprobs(result: GenerationResult, token_bytes: Sequence[bytes]) -> tuple[ChatTokenLogprob, ...]:
    """Return the log-probabilities of the tokens of the answer's text, without those that ended it."""
    found: list[ChatTokenLogprob] = []
    num_bytes = 0
    for token_id, scored in zip(result.token_ids, result.logprobs, strict=False):
        if num_bytes >= len(result.text):
            break
        num_bytes += len(token_bytes[token_id])
        top = tuple((token_bytes[likely_id], logprob) for likely_id, logprob in scored.top)
        found.append(ChatTokenLogprob(token_bytes[scored.token_id], scored.logprob, top))
    return tuple(found)
