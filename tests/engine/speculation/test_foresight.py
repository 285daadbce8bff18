"""A pass shows, behind the place where the model left the draft, where it will leave it again."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from engine.speculation import MergeDraft
from engine.speculation.merge_draft import FEWEST_AGREEING
from engine.types import RowObserver
from tests.engine.speculation.toy_tokens import TOKEN_BYTES

FILE = list(range(100, 300))
FIRST, SECOND, THIRD = 20, 60, 90
"""Places at which the model writes another token than the file has: 1, 2 and 3."""


def written(*changes: tuple[int, int]) -> list[int]:
    token_ids = list(FILE)
    for at, token_id in changes:
        token_ids[at] = token_id
    return token_ids


TARGET = written((FIRST, 1), (SECOND, 2), (THIRD, 3))


def shown(draft: MergeDraft, num_output: int, likeliest_ids: Sequence[int]) -> None:
    """A pass over all of a draft shows these as the likeliest tokens along it."""
    proposed = draft.propose(TARGET[:num_output], 1000).token_ids
    draft.observe(num_output, proposed, likeliest_ids)


def proposal(draft: MergeDraft, num_output: int, max_tokens: int = 1000) -> list[int]:
    return list(draft.propose(TARGET[:num_output], max_tokens).token_ids)


def make(update: Sequence[int] = ()) -> MergeDraft:
    return MergeDraft(merges=[], original=FILE, update=update)


def test_the_engine_shows_a_merge_draft_what_it_asks_for_nothing_extra() -> None:
    draft: object = make()
    assert isinstance(draft, RowObserver)
    assert draft.rows_behind(3, 100) == 0


def test_the_next_departure_is_in_the_next_draft() -> None:
    draft = make()
    shown(draft, 0, TARGET)
    assert proposal(draft, FIRST + 1) == written((SECOND, 2))[FIRST + 1 :]
    assert proposal(draft, FIRST + 1, 5) == FILE[FIRST + 1 : FIRST + 6]
    assert proposal(draft, SECOND - 5, 6) == [*FILE[SECOND - 5 : SECOND], 2]


def test_what_follows_a_foreseen_departure_is_foreseen_from_the_next_pass() -> None:
    draft = make()
    shown(draft, 0, TARGET)
    shown(draft, FIRST + 1, TARGET[FIRST + 1 :])
    assert proposal(draft, SECOND + 1) == FILE[SECOND + 1 :]
    again = make()
    shown(again, 0, TARGET)
    wrong = [*TARGET[FIRST + 1 : 40], 9, *TARGET[41:]]
    proposed = again.propose(TARGET[: FIRST + 1], 1000).token_ids
    again.observe(FIRST + 1, proposed, wrong)
    output = [*TARGET[:40], 9]
    assert list(again.propose(output, 1000).token_ids) == written((SECOND, 2), (THIRD, 3))[41:]


def test_what_comes_directly_behind_a_departure_is_not_believed() -> None:
    for num_agreeing, token_id in ((FEWEST_AGREEING - 1, None), (FEWEST_AGREEING, 2)):
        draft, at = make(), FIRST + 1 + num_agreeing
        shown(draft, 0, written((FIRST, 1), (at, 2)))
        expected = FILE if token_id is None else written((at, token_id))
        assert proposal(draft, FIRST + 1) == expected[FIRST + 1 :]


def test_a_pass_that_shows_otherwise_takes_it_back() -> None:
    draft = make()
    shown(draft, 0, TARGET)
    proposed = draft.propose(TARGET[: FIRST + 1], 30).token_ids
    draft.observe(FIRST + 1, proposed, proposed)  # all of it was written, none of it at the foreseen place
    assert proposal(draft, FIRST + 1) == written((SECOND, 2))[FIRST + 1 :]
    draft.observe(FIRST + 1, proposal(draft, FIRST + 1), [9, *FILE[FIRST + 2 :]])
    output = [*TARGET[: FIRST + 1], 9]
    assert draft.propose(output, 1000) == make().propose(output, 1000)
    draft.observe(FIRST + 2, draft.propose(output, 1000).token_ids, [9, *written((40, 7), (THIRD, 3))[FIRST + 3 :]])
    assert list(draft.propose([*output, 9], 1000).token_ids) == written((40, 7))[FIRST + 3 :]


def test_a_row_behind_another_one_that_differs_can_take_back_but_not_foresee() -> None:
    draft = make()
    shown(draft, 0, TARGET)
    draft.observe(FIRST + 1, proposal(draft, FIRST + 1), [9, *written((40, 7), (THIRD, 3))[FIRST + 2 :]])
    assert list(draft.propose([*TARGET[: FIRST + 1], 9], 1000).token_ids) == written((40, 7))[FIRST + 2 :]


def test_what_was_written_is_foreseen_no_longer_where_the_copy_jumps_back() -> None:
    draft = make()
    shown(draft, 0, TARGET)
    shown(draft, FIRST + 1, TARGET[FIRST + 1 :])
    output = [*TARGET[: SECOND + 5], *FILE[30:40]]
    assert list(draft.propose(output, 1000).token_ids) == FILE[40:]


def test_where_the_model_writes_as_was_drafted_first_the_copy_goes_on() -> None:
    draft = make()
    shown(draft, 0, TARGET)
    proposal(draft, FIRST + 1)
    output = [*TARGET[: FIRST + 1], *FILE[FIRST + 1 : SECOND + 1]]
    assert list(draft.propose(output, 1000).token_ids) == FILE[SECOND + 1 :]


def test_tokens_that_are_inserted_are_inserted_once() -> None:
    draft = make(update=[*FILE[SECOND - 5 : SECOND], 2, 9])
    shown(draft, 0, TARGET)
    assert proposal(draft, FIRST + 1) == [*FILE[FIRST + 1 : SECOND], 2, 9, *FILE[SECOND:]]


def test_a_foreseen_token_is_a_run_with_its_own_hazard() -> None:
    draft = make()
    shown(draft, 0, TARGET)
    runs = draft.propose(TARGET[: FIRST + 1], 1000).runs
    assert sum(run.num_tokens for run in runs) == len(FILE) - FIRST - 1
    before, foreseen = runs[1], runs[2]
    assert (before.num_tokens, foreseen.num_tokens) == (SECOND - FIRST - 2, 1)
    assert before.hazard < foreseen.hazard < 0.5


def test_what_was_shown_of_another_draft_is_not_looked_at() -> None:
    draft = make()
    draft.propose([], 1000)
    draft.observe(0, written((5, 9)), TARGET)  # as where the request forces its first tokens
    draft.observe(3, FILE[3:], TARGET[3:])
    assert proposal(draft, FIRST + 1) == FILE[FIRST + 1 :]


few_ids = st.lists(st.integers(0, 5), max_size=40)


@given(
    merge=few_ids,
    original=few_ids,
    update=few_ids,
    target=few_ids,
    noise=st.lists(st.integers(0, 5), min_size=40, max_size=40),
    knows_bytes=st.booleans(),
    max_tokens=st.integers(1, 40),
)
def test_whatever_is_shown_drafts_hold_together_and_end(
    merge: list[int],
    original: list[int],
    update: list[int],
    target: list[int],
    noise: list[int],
    knows_bytes: bool,
    max_tokens: int,
) -> None:
    draft = MergeDraft(
        merges=[merge], original=original, update=update, token_bytes=TOKEN_BYTES if knows_bytes else None
    )
    num_output = 0
    while num_output < len(target):
        proposed = draft.propose(target[:num_output], max_tokens)
        assert len(proposed.token_ids) <= max_tokens
        assert sum(run.num_tokens for run in proposed.runs) == len(proposed.token_ids)
        assert draft.propose(target[:num_output], max_tokens) == proposed
        rest = target[num_output:]
        pairs = enumerate(zip(proposed.token_ids, rest, strict=False))
        accepted = next((at for at, (one, other) in pairs if one != other), min(len(proposed.token_ids), len(rest) - 1))
        if proposed.token_ids:
            behind = [each or own for own, each in zip(proposed.token_ids, noise, strict=False)]
            draft.observe(num_output, proposed.token_ids, [*rest[: accepted + 1], *behind[accepted + 1 :]])
        num_output += accepted + 1
