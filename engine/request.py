"""The state of one running request: sampling, output bytes up to a stop string, draft and usage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from engine.layers import Adapter
from engine.reuse import ReusePlan
from engine.sampling import Sampler
from engine.speculation.draft_state import DraftState
from engine.types import (
    GenerationRequest,
    GenerationResult,
    GenerationStep,
    GenerationUsage,
    TokenLogprob,
)

LONGEST_CHARACTER = 4


class StopFinder:
    """Collects one sequence's bytes up to the first stop string, however it is spread over tokens.

    The output ends with the byte that completes the first stop string; if several are complete there, the longest is
    cut off. So the result does not depend on how the bytes are split into tokens. Takes time in proportion to the bytes
    and the number of stop strings.

    Example: with stop b"</x>", the bytes b"a</" release b"a"; b"b" after them releases b"</b".
    """

    def __init__(self, token_bytes: Sequence[bytes], stop_ids: frozenset[int], stop: tuple[bytes, ...]) -> None:
        self._token_bytes = token_bytes
        self._stop_ids = stop_ids
        self._stops = [_StopString(each) for each in stop]
        self._released = 0
        self.text = bytearray()
        self.stopped = False

    def push(self, token_id: int) -> bool:
        """Add the next token; return whether it ends the output."""
        assert not self.stopped
        if token_id in self._stop_ids:
            self.stopped = True
            return True
        added = self._token_bytes[token_id]
        for count, byte in enumerate(added if self._stops else b"", start=1):
            cut = max(stop.complete_with(byte) for stop in self._stops)
            if cut:
                self.text += added[:count]
                del self.text[-cut:]
                self.stopped = True
                return True
        self.text += added
        return False

    def push_all(self, token_ids: list[int]) -> int:
        """Add tokens up to the one that ends the output; return how many were added."""
        if not self._stops and self._stop_ids.isdisjoint(token_ids):
            self.text += b"".join([self._token_bytes[token_id] for token_id in token_ids])
            return len(token_ids)
        return next((count for count, token_id in enumerate(token_ids, 1) if self.push(token_id)), len(token_ids))

    def release(self, *, finished: bool) -> bytes:
        """Return the bytes that are certain to be output and not released yet, up to the end of a UTF-8 character.

        Bytes that are part of no character and cannot become one are released as they are. With `finished`, or after a
        stop, everything left is released.
        """
        end = len(self.text)
        if not (finished or self.stopped):
            end -= max((stop.num_matched for stop in self._stops), default=0)
            end = find_character_border(self.text, end)
        text = bytes(self.text[self._released : end])
        self._released = end
        return text


class _StopString:
    """How much of one stop string the text ends with (Knuth, Morris and Pratt 1977, Fast pattern matching in strings).

    `_shorter[n]` is the length of the next shorter prefix that the first n + 1 bytes end with: if another byte follows
    them, the match goes on from there. Example: b"abab" -> [0, 0, 1, 2].
    """

    def __init__(self, stop: bytes) -> None:
        self._stop = stop
        self.num_matched = 0
        self._shorter = [0]
        for byte in stop[1:]:
            self._shorter.append(self._extend_match(self._shorter[-1], byte))

    def complete_with(self, byte: int) -> int:
        """Add the text's next byte; return the stop string's length if this byte completes it, else 0."""
        self.num_matched = self._extend_match(self.num_matched, byte)
        return self.num_matched if self.num_matched == len(self._stop) else 0

    def _extend_match(self, num_matched: int, byte: int) -> int:
        while num_matched and self._stop[num_matched] != byte:
            num_matched = self._shorter[num_matched - 1]
        return num_matched + (self._stop[num_matched] == byte)


def find_character_border(text: bytearray, end: int) -> int:
    """Return the last position up to `end` that does not split a UTF-8 character, or what may still become one.

    The bytes after `end` are read too: they may show that the ones before it are no character. Example: of
    b"a\\xe2\\x82" (the first two bytes of a euro sign after a letter), 3 -> 1; of b"a\\xe2<", 2 -> 2.
    """
    for start in range(end - 1, max(end - LONGEST_CHARACTER, -1), -1):
        size = _size_by_first_byte(text[start])
        if size:
            parted = start + size > end and _may_be_character(bytes(text[start : start + size]))
            return start if parted else end
    return end


def _size_by_first_byte(byte: int) -> int:
    """Return the bytes of the character that begins so; 0 for a continuation byte, 1 for a byte that begins none."""
    if 0x80 <= byte < 0xC0:
        return 0
    return 2 if 0xC2 <= byte < 0xE0 else 3 if 0xE0 <= byte < 0xF0 else 4 if 0xF0 <= byte < 0xF5 else 1


def _may_be_character(part: bytes) -> bool:
    """Return whether the bytes are a character or the beginning of one."""
    try:
        part.decode()
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data"
    return True


class AddedTokens(NamedTuple):
    """The tokens that a pass added to an output, and how many it drafted and accepted."""

    token_ids: list[int]
    logprobs: tuple[TokenLogprob, ...]
    num_drafted: int
    num_accepted: int


class RequestState:
    """What the engine keeps for a request besides its `ScheduledSequence`."""

    def __init__(
        self,
        request: GenerationRequest,
        token_bytes: Sequence[bytes],
        drafting: DraftState,
        adapter: Adapter | None = None,
    ) -> None:
        self.request = request
        self.adapter = adapter
        self.sampler = Sampler(request)
        self.draft_state = drafting
        self.usage = GenerationUsage(prompt=len(request.prompt_ids), by_source=drafting.by_source)
        self.output_ids: list[int] = []
        self._drafts = True
        self._stops = StopFinder(token_bytes, request.stop_ids, request.stop)
        self._logprobs: list[TokenLogprob] = []

    @property
    def is_finished(self) -> bool:
        """Whether the output has ended."""
        return self._stops.stopped or len(self.output_ids) == self.request.max_new_tokens

    def count_prompt(self, num_cached: int, plan: ReusePlan | None) -> None:
        """Set the counts of the prompt's tokens from its first admission: so many had exact KV, the others are as
        planned.
        """
        usage = self.usage
        usage.cached = num_cached
        usage.reused_approximate = 0 if plan is None else plan.num_placed
        usage.recomputed = usage.prompt - num_cached - usage.reused_approximate
        usage.recomputed_by = {"changed": usage.recomputed} if plan is None else dict(plan.by_reason)
        usage.reused_at = () if plan is None else tuple((each.start, each.end) for each in plan.placed)

    def propose_draft(self, most: int) -> list[int]:
        """Return up to `most` tokens that may come next, except for the one that every pass gives without a draft.

        Forced ids are returned as a draft, all that are left: all of it will be accepted.
        """
        if not self._drafts:
            return []
        if self.is_forced:
            return list(self.request.forced_ids[len(self.output_ids) : self.request.max_new_tokens - 1])
        room = min(most, self.request.max_new_tokens - len(self.output_ids) - 1)
        return list(self.draft_state.propose(self.output_ids, room))

    def count_model_room(self) -> int:
        """Return how many tokens a draft model may draft; none where the next token is forced."""
        if not self._drafts or self.is_forced:
            return 0
        return self.request.max_new_tokens - len(self.output_ids) - 1

    def stop_drafts(self) -> None:
        """Write one token a pass from now on."""
        self._drafts = False

    def append_choice(self, token_ids: list[int], logprobs: Sequence[TokenLogprob], num_drafted: int) -> AddedTokens:
        """Append the tokens that the model chose along a draft, up to the token that ends the output."""
        was_forced = self.is_forced
        taken = self._append(token_ids)
        if logprobs:
            logprobs = logprobs[: len(taken)]
            self._logprobs += logprobs
        num_accepted = min(len(token_ids) - 1, len(taken))
        if was_forced:  # then it was no guess
            num_drafted = num_accepted = 0
        else:
            self.draft_state.observe(taken, num_drafted, len(self.output_ids))
        self.usage.drafted += num_drafted
        self.usage.accepted += num_accepted
        self.usage.completion = len(self.output_ids)
        return AddedTokens(taken, tuple(logprobs), num_drafted, num_accepted)

    def build_step(self, added: AddedTokens) -> GenerationStep:
        """Return the step of the tokens that were added last, with the text that is certain now."""
        text = self._stops.release(finished=self.is_finished)
        return GenerationStep(tuple(added.token_ids), text, added.logprobs, added.num_drafted, added.num_accepted)

    def build_result(self) -> GenerationResult:
        """Return the whole output, once it has ended."""
        return GenerationResult(
            token_ids=tuple(self.output_ids),
            text=bytes(self._stops.text),
            finish_reason="stop" if self._stops.stopped else "length",
            usage=self.usage,
            logprobs=tuple(self._logprobs),
        )

    @property
    def is_forced(self) -> bool:
        """Whether the next token is forced, so that the draft is no guess."""
        return len(self.output_ids) < len(self.request.forced_ids)

    def _append(self, token_ids: list[int]) -> list[int]:
        taken = token_ids[: self.request.max_new_tokens - len(self.output_ids)]
        taken = taken[: self._stops.push_all(taken)]
        self.output_ids += taken
        return taken
