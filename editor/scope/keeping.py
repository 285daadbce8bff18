"""What a model must have left alone of the regions that it was given: the lines at their ends."""

from __future__ import annotations

from collections.abc import Sequence

from editor.scope.splicing import lines_of
from editor.scope.types import Region
from editor.types import Check
from editor.wording import span_of


def region_kept(regions: Sequence[Region], answers: Sequence[str]) -> Check:
    """Check that every answer begins and ends with the lines with which its region does.

    An answer that leaves them out, or changes them, takes the region for something else than the edit's place: the
    whole file, or nothing but the edit.
    """
    lost = [region for region, answer in zip(regions, answers, strict=True) if not _keeps(region, answer)]
    where = ", ".join(span_of(region.first_line, region.end_line) for region in lost)
    detail = f"the model changed lines beside those that the edit can touch, in {where}" if lost else "all kept"
    return Check("region_kept", not lost, detail)


def _keeps(region: Region, answer: str) -> bool:
    stood, stands = lines_of(region.text), lines_of(answer)
    above, below = region.num_above, region.num_below
    if len(stands) < above + below:
        return False
    return stands[:above] == stood[:above] and (not below or stands[-below:] == stood[-below:])
