"""Drafters to compare, and the passes that each takes to write a known target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.forwards.cases import ForwardsCase
from benchmarks.forwards.copy_draft import CopyDraft
from engine.speculation import MergeDraft
from engine.speculation.sources import NO_TOKEN, SuffixIndex
from engine.types import Draft, Proposer

UNCAPPED = 1 << 30


@dataclass(frozen=True, slots=True)
class Windows:
    """How many tokens a pass drafts: `first` in the pass that is fused with the prefill, then `least` to `most`.

    A window grows fourfold when all of it was accepted, and is `least` again after a miss.
    """

    first: int
    least: int
    most: int

    @classmethod
    def make_fixed(cls, size: int, first: int = 0) -> Windows:
        """Return the same window in every pass; none in the first one, unless said so."""
        return cls(first, size, size)


def count_forwards(proposer: Proposer, target: Sequence[int], windows: Windows) -> int:
    """Return passes after the prefill until all of `target` is written.

    Each pass confirms the drafted tokens that are right, and gives one more; so does the prefill, which is not counted.
    """
    written, passes, size = 0, -1, windows.least
    while written < len(target):
        room = min(windows.first if passes < 0 else size, len(target) - written)
        draft = list(proposer.propose(target[:written], room).token_ids) if room else []
        accepted = count_common(draft, target[written : written + len(draft)])
        if passes >= 0:
            size = min(windows.most, 4 * size) if accepted == len(draft) else windows.least
        written += accepted + 1
        passes += 1
    return passes


def count_common(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many tokens are equal from the start."""
    if list(one) == list(other):
        return len(one)
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


TREE_DEPTH = 24
"""`suffix_decoding_max_tree_depth` of vLLM: a match and what is drafted after it are no longer together."""

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
        self._context.grow(output_ids[self._num_seen :])
        self._num_seen = len(output_ids)
        places, lengths = self._context.search(output_ids[-self._most :], self._most)
        if not len(places) or lengths.max() < self._least:
            return Draft.from_tokens([])
        longest = places[lengths == lengths.max()]
        place = int(longest[-1 if self._newest else 0])
        return Draft.from_tokens(_cut_at_end(self._context[place : place + min(max_tokens, self._num_tokens)]))


class SuffixDecodingDraft:
    """The method of vLLM's and Arctic's suffix decoding: the most frequent continuation of the longest match.

    As long as the match (`max_spec_factor` 1), within a tree of TREE_DEPTH tokens, while its estimated probability is
    at least MIN_PROBABILITY. So 12 tokens after a match of 12 are the longest draft. Oliaro et al. 2024
    (SuffixDecoding). Of all match lengths the method takes the one with the best sum of probabilities; here it is the
    longest up to half the depth, which is that wherever the continuation is certain.
    """

    def __init__(self, prompt: Sequence[Sequence[int]]) -> None:
        self._context = SuffixIndex(prompt)
        self._num_seen = 0

    def propose(self, output_ids: Sequence[int], max_tokens: int) -> Draft:
        self._context.grow(output_ids[self._num_seen :])
        self._num_seen = len(output_ids)
        longest = TREE_DEPTH // 2
        places, lengths = self._context.search(output_ids[-longest:], longest)
        if not len(places):
            return Draft.from_tokens([])
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
        return Draft.from_tokens(draft)


class NoDraft:
    """Nothing: a token a pass."""

    def propose(self, output_ids: Sequence[int], max_tokens: int) -> Draft:
        return Draft.from_tokens([])


def _cut_at_end(token_ids: list[int]) -> list[int]:
    return token_ids[: token_ids.index(NO_TOKEN)] if NO_TOKEN in token_ids else token_ids


CAP = 1024
MERGE_DRAFT = "merge draft"


@dataclass(frozen=True, slots=True)
class Drafter:
    """One way of drafting: the proposer that it has for a case, and how much of it is put before the model."""

    make: Callable[[ForwardsCase, Sequence[bytes]], Proposer]
    windows: Windows


def _make_merge_draft(case: ForwardsCase, token_bytes: Sequence[bytes]) -> MergeDraft:
    return MergeDraft(merges=case.merges, original=case.original, update=case.update, token_bytes=token_bytes)


def _list_prompt(case: ForwardsCase) -> list[Sequence[int]]:
    return [case.original, case.update]


DRAFTERS: Mapping[str, Drafter] = {
    MERGE_DRAFT: Drafter(_make_merge_draft, Windows.make_fixed(CAP, first=UNCAPPED)),
    "merge draft, the fused pass capped too": Drafter(_make_merge_draft, Windows.make_fixed(CAP, first=CAP)),
    "pointer over original and update, 256": Drafter(
        lambda case, _: CopyDraft(_list_prompt(case)), Windows.make_fixed(256)
    ),
    "longest suffix, 128": Drafter(
        lambda case, _: NgramDraft(_list_prompt(case), 128, least=1, most=64, newest=True), Windows.make_fixed(128)
    ),
    "n-gram of 2 to 5, 64": Drafter(
        lambda case, _: NgramDraft(_list_prompt(case), 64, least=2, most=5), Windows.make_fixed(64)
    ),
    "vLLM suffix decoding, 12 in effect": Drafter(
        lambda case, _: SuffixDecodingDraft(_list_prompt(case)), Windows.make_fixed(CAP)
    ),
    "transformers prompt lookup, 10": Drafter(
        lambda case, _: NgramDraft(_list_prompt(case), 10, least=1, most=2), Windows.make_fixed(10)
    ),
    "no draft": Drafter(lambda case, _: NoDraft(), Windows.make_fixed(0)),
}
"""By name. In `Windows` of general servers nothing is fused with the prefill: they draft from the output's tail."""
