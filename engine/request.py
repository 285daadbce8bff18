"""The state of one running request: sampling, stop strings, draft and usage."""

from __future__ import annotations

from collections.abc import Sequence

from engine.layers import Adapter
from engine.reuse import ReusePlan
from engine.sampling import Choice, Sampler
from engine.speculation.draft_state import Drafting
from engine.stop_strings import StopFinder
from engine.types import (
    DraftBranch,
    GenerationRequest,
    GenerationResult,
    GenerationStep,
    GenerationUsage,
    RowObserver,
    TokenLogprob,
)


class Generation:
    """What the engine keeps of a request beside its sequence, which is the scheduler's."""

    def __init__(
        self,
        request: GenerationRequest,
        token_bytes: Sequence[bytes],
        drafting: Drafting,
        adapter: Adapter | None = None,
    ) -> None:
        self.request = request
        self.adapter = adapter
        self.sampler = Sampler(request)
        self.drafting = drafting
        self.usage = GenerationUsage(prompt=len(request.prompt_ids), by_source=drafting.by_source)
        self.output_ids: list[int] = []
        self._drafts = True
        self._stops = StopFinder(token_bytes, request.stop_ids, request.stop)
        self._logprobs: list[TokenLogprob] = []

    @property
    def finished(self) -> bool:
        """Whether the output has ended."""
        return self._stops.stopped or len(self.output_ids) == self.request.max_new_tokens

    def count_prompt(self, num_cached: int, plan: ReusePlan | None) -> None:
        """What became of the prompt's tokens when they were first run: so many had exact KV, others as in the plan."""
        usage = self.usage
        usage.cached = num_cached
        usage.reused_approximate = 0 if plan is None else plan.num_placed
        usage.recomputed = usage.prompt - num_cached - usage.reused_approximate
        usage.recomputed_by = {"changed": usage.recomputed} if plan is None else dict(plan.by_reason)
        usage.reused_at = () if plan is None else tuple((each.start, each.end) for each in plan.placed)

    def draft(self, most: int) -> list[int]:
        """What may come next, up to `most` tokens; one place is left for the token that every pass gives for free.

        Forced ids ride as a draft does, as many as there are: all of it will be accepted.
        """
        if not self._drafts:
            return []
        if self.is_forced:
            return list(self.request.forced_ids[len(self.output_ids) : self.request.max_new_tokens - 1])
        room = min(most, self.request.max_new_tokens - len(self.output_ids) - 1)
        return list(self.drafting.propose(self.output_ids, room))

    @property
    def branch(self) -> DraftBranch | None:
        """Another way on from within what `draft` gave."""
        return None if not self._drafts or self.is_forced else self.drafting.branch

    def stop_drafting(self) -> None:
        """From now on a token a pass."""
        self._drafts = False

    @property
    def observer(self) -> RowObserver | None:
        """The drafter, where it wants to be shown what the model would have written along its drafts."""
        proposer: object = self.drafting.proposer
        return proposer if isinstance(proposer, RowObserver) else None

    def take(self, choice: Choice, num_drafted: int, num_branched: int = 0) -> GenerationStep:
        """Append what the model chose along a draft or its branch, up to the token that ends the output."""
        num_guessed, num_accepted = num_drafted + num_branched, len(choice.token_ids) - 1
        was_forced = self.is_forced
        taken = self._append(choice.token_ids)
        logprobs = choice.logprobs[: len(taken)]
        self._logprobs += logprobs
        num_accepted = min(num_accepted, len(taken))
        if was_forced:  # then it was no guess
            num_guessed = num_accepted = 0
        else:
            self.drafting.observe(taken, num_drafted, len(self.output_ids), num_branched)
        self.usage.drafted += num_guessed
        self.usage.accepted += num_accepted
        self.usage.completion = len(self.output_ids)
        text = self._stops.release(finished=self.finished)
        return GenerationStep(tuple(taken), text, logprobs, num_guessed, num_accepted)

    def result(self) -> GenerationResult:
        """The whole output, once it has ended."""
        return GenerationResult(
            token_ids=tuple(self.output_ids),
            text=bytes(self._stops.text),
            finish_reason="stop" if self._stops.stopped else "length",
            usage=self.usage,
            logprobs=tuple(self._logprobs),
        )

    @property
    def is_forced(self) -> bool:
        """Whether the next token is given, and so the draft no guess."""
        return len(self.output_ids) < len(self.request.forced_ids)

    def _append(self, token_ids: list[int]) -> list[int]:
        for count, token_id in enumerate(token_ids, start=1):
            self.output_ids.append(token_id)
            if self._stops.push(token_id) or self.finished:
                return token_ids[:count]
        return token_ids
