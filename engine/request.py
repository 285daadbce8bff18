"""The state of one running request: sampling, stop strings, draft and usage."""

from __future__ import annotations

from collections.abc import Sequence

from engine.layers import Adapter
from engine.reuse import ReusePlan
from engine.sampling import Choice, Sampler
from engine.speculation.draft_state import DraftState
from engine.stop_strings import StopFinder
from engine.types import (
    GenerationRequest,
    GenerationResult,
    GenerationStep,
    GenerationUsage,
    TokenLogprob,
)


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

    def stop_drafts(self) -> None:
        """Write one token a pass from now on."""
        self._drafts = False

    def append_choice(self, choice: Choice, num_drafted: int) -> GenerationStep:
        """Append the tokens that the model chose along a draft, up to the token that ends the output."""
        was_forced = self.is_forced
        taken = self._append(choice.token_ids)
        logprobs = choice.logprobs[: len(taken)]
        self._logprobs += logprobs
        num_accepted = min(len(choice.token_ids) - 1, len(taken))
        if was_forced:  # then it was no guess
            num_drafted = num_accepted = 0
        else:
            self.draft_state.observe(taken, num_drafted, len(self.output_ids))
        self.usage.drafted += num_drafted
        self.usage.accepted += num_accepted
        self.usage.completion = len(self.output_ids)
        text = self._stops.release(finished=self.is_finished)
        return GenerationStep(tuple(taken), text, logprobs, num_drafted, num_accepted)

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
        for count, token_id in enumerate(token_ids, start=1):
            self.output_ids.append(token_id)
            if self._stops.push(token_id) or self.is_finished:
                return token_ids[:count]
        return token_ids
