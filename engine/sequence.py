"""One request on its way through the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.sampling import Sampler
from engine.speculation.window import DraftWindow
from engine.stopping import StopFinder
from engine.types import GenerationRequest, GenerationUsage


@dataclass(slots=True)
class RunningSequence:
    """What is asked, what has been written, and what it cost so far."""

    request: GenerationRequest
    sampler: Sampler
    stops: StopFinder
    usage: GenerationUsage
    window: DraftWindow = field(default_factory=DraftWindow)
    output_ids: list[int] = field(default_factory=list)

    @property
    def num_left(self) -> int:
        """Tokens that may still be written."""
        return self.request.max_new_tokens - len(self.output_ids)

    def append(self, token_ids: Sequence[int]) -> list[int]:
        """Take chosen tokens in order until one ends the output; return those that were taken."""
        for count, token_id in enumerate(token_ids, start=1):
            self.output_ids.append(token_id)
            if self.stops.push(token_id) or self.num_left == 0:
                return list(token_ids[:count])
        return list(token_ids)
