"""How many tokens of a draft the model confirms."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def num_accepted(token_ids: NDArray[np.intp], draft: Sequence[int]) -> int:
    """Draft tokens before the first that is not the chosen one; token_ids[i] is chosen where draft[i] stands."""
    count = min(len(token_ids), len(draft))
    departures = np.flatnonzero(token_ids[:count] != np.asarray(draft[:count], dtype=np.intp))
    return int(departures[0]) if len(departures) else count
