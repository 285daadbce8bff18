"""Drafters of general servers, recreated: they know the prompt and the output, not what is edited in what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from engine.speculation.sources import NO_TOKEN, SuffixIndex
from engine.types import Draft

TREE_DEPTH = 24
"""`suffix_decoding_max_tree_depth` of vLLM: a match and what is drafted behind it are no longer together."""

MIN_PROBABILITY = 0.1
"""`suffix_decoding_min_token_prob` of vLLM."""


class NgramDraft:
    """Drafts what follows another place that the output's last tokens stand at.

    The longest match of `least` to `most` tokens counts; of equal ones the first place, or the last with `newest`.

    - transformers, prompt lookup: PromptLookupCandidateGenerator, 10 tokens, matches of 2 or 1, the first place.
    - vLLM, ngram: NgramProposer, the longest match between prompt_lookup_min and _max, the first place.
    """

    def __init__(
        self, prompt: Sequence[Sequence[int]], num_tokens: int, *, least: int, most: int, newest: bool = False
    ) -> None:
        self._context = SuffixIndex(prompt)
        self._num_tokens = num_tokens
        self._least, self._most, self._newest = least, most, newest
        self._num_seen = 0

    def propose(self, output_ids: Sequence[int], max_tokens: int) -> Draft:
        """The tokens behind that place."""
        self._context.grow(output_ids[self._num_seen :])
        self._num_seen = len(output_ids)
        places, lengths = self._context.search(output_ids[-self._most :], self._most)
        if not len(places) or lengths.max() < self._least:
            return Draft.of([])
        longest = places[lengths == lengths.max()]
        place = int(longest[-1 if self._newest else 0])
        return Draft.of(_before_end(self._context[place : place + min(max_tokens, self._num_tokens)]))


class SuffixDecodingDraft:
    """The method of vLLM's and Arctic's suffix decoding: the most frequent continuation of the longest match.

    As long as the match (`max_spec_factor` 1), within a tree of TREE_DEPTH tokens, while its estimated probability is
    at least MIN_PROBABILITY. So 12 tokens behind a match of 12 are the longest draft. Oliaro et al. 2024
    (SuffixDecoding). Of all match lengths the method takes the one with the best sum of probabilities; here it is the
    longest up to half the depth, which is that wherever the continuation is certain.
    """

    def __init__(self, prompt: Sequence[Sequence[int]]) -> None:
        self._context = SuffixIndex(prompt)
        self._num_seen = 0

    def propose(self, output_ids: Sequence[int], max_tokens: int) -> Draft:
        """The continuation, token by token."""
        self._context.grow(output_ids[self._num_seen :])
        self._num_seen = len(output_ids)
        longest = TREE_DEPTH // 2
        places, lengths = self._context.search(output_ids[-longest:], longest)
        if not len(places):
            return Draft.of([])
        length = int(lengths.max())
        followers = [self._context[place : place + length] for place in places[lengths == length].tolist()]
        draft: list[int] = []
        probability = 1.0
        while len(draft) < min(length, max_tokens):
            counts = Counter(each[len(draft)] for each in followers if len(each) > len(draft))
            token_id, count = counts.most_common(1)[0] if counts else (NO_TOKEN, 0)
            probability *= count / max(1, len(followers))
            if token_id == NO_TOKEN or probability < MIN_PROBABILITY:
                break
            draft.append(token_id)
            followers = [each for each in followers if each[: len(draft)] == draft]
        return Draft.of(draft)


class NoDraft:
    """Nothing: a token a pass."""

    def propose(self, output_ids: Sequence[int], max_tokens: int) -> Draft:
        """No tokens."""
        return Draft.of([])


def _before_end(token_ids: list[int]) -> list[int]:
    return token_ids[: token_ids.index(NO_TOKEN)] if NO_TOKEN in token_ids else token_ids
