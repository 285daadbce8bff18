"""How long a wrong token takes to be refused says nothing of how much of it is right: a measurement.

Tokens that are wrong in their first character of the secret are compared, in pairs, with tokens that are wrong in their
last, as an attacker would who guesses character by character. The same statistic is taken of the naive comparison, on
texts so long that its early end shows: a measurement that does not see that one would see nothing.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from agent_runtime.access import TokenSet, new_token
from agent_runtime.errors import Unauthorized

NUM_PAIRS = 20_000
NAIVE_LEN = 50_000
NOW = datetime(2030, 1, 1, tzinfo=UTC)

TELLING = 0.9
"""Of pairs in which the same one is slower; without a difference it is a half."""

NOT_TELLING = 0.55


def share_of_slower(first: Callable[[], object], second: Callable[[], object], num_pairs: int) -> float:
    """In how many of many interleaved pairs `first` takes longer, ties counted as halves; the order is drawn."""
    slower = 0.0
    gc.disable()
    try:
        for _ in range(num_pairs):
            times = {}
            for act in random.sample((first, second), 2):
                started = time.perf_counter_ns()
                act()
                times[act] = time.perf_counter_ns() - started
            slower += 0.5 if times[first] == times[second] else times[first] > times[second]
    finally:
        gc.enable()
    return slower / num_pairs


@pytest.mark.e2e
def test_a_token_that_is_nearly_right_takes_no_longer() -> None:
    token, text = new_token("ann", "acme", frozenset({"apply"}), NOW)
    known = TokenSet().add_token(token)
    other = "A" if text[-1] != "A" else "B"
    at_once, at_last = f"{text[:18]}{other}{text[19:]}", text[:-1] + other
    assert len(at_once) == len(at_last) == len(text)
    assert text not in (at_once, at_last)

    def refused(sent: str) -> None:
        try:
            known.principal(sent, NOW)
        except Unauthorized:
            return
        raise AssertionError("let in")

    shares = [share_of_slower(lambda: refused(at_last), lambda: refused(at_once), NUM_PAIRS) for _ in range(3)]
    assert 1 - NOT_TELLING < statistics.median(shares) < NOT_TELLING, shares


@pytest.mark.e2e
def test_a_comparison_that_ends_early_would_be_seen() -> None:
    right = "x" * NAIVE_LEN
    at_once, at_last = "y" + right[1:], right[:-1] + "y"
    share = share_of_slower(lambda: right == at_last, lambda: right == at_once, 2_000)
    assert share > TELLING


@pytest.mark.e2e
def test_the_id_of_a_token_says_nothing_of_its_secret() -> None:
    """An ID that is known is no secret, but it costs the same hash and comparison as one that is not."""
    token, text = new_token("ann", "acme", frozenset({"apply"}), NOW)
    known = TokenSet().add_token(token)
    hashed = []

    def counted(sent: str) -> str:
        hashed.append(sent)
        return digest(sent)

    from agent_runtime import access

    digest = access.digest
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(access, "digest", counted)
        for sent in (text[:-1] + "_", "hunk_" + "0" * 12 + text[17:], "no token at all"):
            with pytest.raises(Unauthorized):
                known.principal(sent, NOW)
    assert len(hashed) == 3
