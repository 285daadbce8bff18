"""vLLM's own drafters behind its seam for others, so that one engine is measured with each of them, and with none."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Sequence
from typing import Any

from benchmarks.peers.jobs import Speculation

LARGEST = 64
"""Most tokens of a draft."""

NGRAM_MIN, NGRAM_MAX = 3, 16
"""Its n-gram drafter follows the longest match of so many tokens; by default always 5, which code that repeats misleads
more often."""

CLASS = f"{__name__}.Drafts"


def methods() -> list[str]:
    """What can be measured here; suffix drafts need Arctic Inference."""
    return ["ngram", *(["suffix"] if importlib.util.find_spec("arctic_inference") else [])]


class Drafts:
    """What vLLM calls for drafts; it passes each call on to the drafter of the job that runs."""

    def __init__(self, config: Any) -> None:
        self._config = config
        self._made: dict[tuple[tuple[str, Any], ...], Any] = {}
        self._chosen: Speculation = {}
        self._input_batch: Any = None

    def choose(self, speculation: Speculation, input_batch: Any) -> None:
        """How to draft from now on. `input_batch` is the runner's, which the suffix drafter reads."""
        self._chosen, self._input_batch = speculation, input_batch
        if speculation and (key := tuple(speculation.items())) not in self._made:
            self._made[key] = self._ngram() if speculation["method"] == "ngram" else self._suffix(speculation)

    def propose(
        self, sampled_token_ids: list[list[int]], num_tokens: Any, token_ids: Any, slot_mappings: Any = None
    ) -> Sequence[Sequence[int]]:
        """The drafts of all requests of a batch."""
        if not self._chosen:
            return [[] for _ in sampled_token_ids]
        drafter = self._made[tuple(self._chosen.items())]
        drafts: Sequence[Sequence[int]]
        if self._chosen["method"] == "ngram":
            drafts = drafter.propose(self._chosen["num_tokens"], sampled_token_ids, num_tokens, token_ids)
        else:
            drafts = drafter.propose(LARGEST, self._input_batch, sampled_token_ids)
        return drafts

    def load_model(self, *_: Any) -> None:
        """There is no model to load."""

    def _ngram(self) -> Any:
        from vllm.v1.spec_decode.ngram_proposer import NgramProposer

        return NgramProposer(self._configured(prompt_lookup_min=NGRAM_MIN, prompt_lookup_max=NGRAM_MAX))

    def _suffix(self, speculation: Speculation) -> Any:
        from vllm.v1.spec_decode.suffix_decoding import SuffixDecodingProposer

        return SuffixDecodingProposer(
            self._configured(
                suffix_decoding_max_tree_depth=speculation["depth"],
                suffix_decoding_max_spec_factor=speculation["factor"],
                suffix_decoding_max_cached_requests=0,  # what was written before, this very text among it, helps none
            )
        )

    def _configured(self, **settings: float) -> Any:
        config = copy.copy(self._config)
        config.speculative_config = copy.copy(config.speculative_config)
        for name, value in settings.items():
            setattr(config.speculative_config, name, value)
        return config
