"""The ways of drafting that are compared, with their windows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.forwards.cases import ForwardsCase
from benchmarks.forwards.counting import UNCAPPED, Windows
from benchmarks.forwards.general import NgramDraft, NoDraft, SuffixDecodingDraft
from engine.speculation import CopyDraft, MergeDraft
from engine.types import Proposer

CAP = 1024
MERGE_DRAFT = "merge draft"


@dataclass(frozen=True, slots=True)
class Drafter:
    """One way of drafting: the proposer that it has for a case, and how much of it is put before the model."""

    make: Callable[[ForwardsCase, Sequence[bytes]], Proposer]
    windows: Windows


def _merge_draft(case: ForwardsCase, token_bytes: Sequence[bytes]) -> MergeDraft:
    return MergeDraft(merges=case.merges, original=case.original, update=case.update, token_bytes=token_bytes)


def _prompt(case: ForwardsCase) -> list[Sequence[int]]:
    return [case.original, case.update]


DRAFTERS: Mapping[str, Drafter] = {
    MERGE_DRAFT: Drafter(_merge_draft, Windows.fixed(CAP, first=UNCAPPED)),
    "merge draft, the fused pass capped too": Drafter(_merge_draft, Windows.fixed(CAP, first=CAP)),
    "merge draft, nothing fused, 64 to 1,024": Drafter(_merge_draft, Windows(0, 64, CAP)),
    "merge draft, nothing fused, 256": Drafter(_merge_draft, Windows.fixed(256)),
    "pointer over original and update, 256": Drafter(lambda case, _: CopyDraft(_prompt(case)), Windows.fixed(256)),
    "longest suffix, 128": Drafter(
        lambda case, _: NgramDraft(_prompt(case), 128, least=1, most=64, newest=True), Windows.fixed(128)
    ),
    "n-gram of 2 to 5, 64": Drafter(lambda case, _: NgramDraft(_prompt(case), 64, least=2, most=5), Windows.fixed(64)),
    "vLLM suffix decoding, 12 in effect": Drafter(
        lambda case, _: SuffixDecodingDraft(_prompt(case)), Windows.fixed(CAP)
    ),
    "transformers prompt lookup, 10": Drafter(
        lambda case, _: NgramDraft(_prompt(case), 10, least=1, most=2), Windows.fixed(10)
    ),
    "no draft": Drafter(lambda case, _: NoDraft(), Windows.fixed(0)),
}
"""By name. In `Windows` of general servers nothing is fused with the prefill: they draft from the output's tail."""
