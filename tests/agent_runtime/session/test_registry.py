"""Sessions are their tenant's own, so many at a time, and end when nobody uses them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from agent_runtime.access import ALL_SCOPES, Principal
from agent_runtime.apply.pipeline import Applier
from agent_runtime.errors import ModelUnavailable, SessionMissing, TooManyRequests
from agent_runtime.session import ServerSession, SessionRegistry

ANN = Principal("ann", ALL_SCOPES)
BOB = Principal("bob", ALL_SCOPES)


def no_model() -> object:
    raise ModelUnavailable("there is none")


def session() -> ServerSession:
    return ServerSession(Applier(no_model), no_model)  # type: ignore[arg-type]


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def begin(sessions: SessionRegistry, principal: Principal) -> ServerSession:
    made = session()
    sessions.add(made, principal)
    return made


def is_there(sessions: SessionRegistry, made: ServerSession, principal: Principal) -> bool:
    """Counts as a use, where it is."""
    try:
        return sessions.get(made.id, principal) is made
    except SessionMissing:
        with pytest.raises(SessionMissing):
            made.read([])
        return False


def test_a_tenant_finds_its_own_only() -> None:
    sessions = SessionRegistry()
    own = begin(sessions, ANN)
    assert sessions.get(own.id, ANN) is own
    for call in (sessions.get, sessions.remove):
        with pytest.raises(SessionMissing):
            call(own.id, BOB)
        with pytest.raises(SessionMissing):
            call("none", ANN)
    sessions.remove(own.id, ANN)
    assert not is_there(sessions, own, ANN)
    assert len(sessions) == 0


def test_what_is_not_used_for_long_ends() -> None:
    clock = Clock()
    sessions = SessionRegistry(idle_seconds=10.0, now=clock)
    first, second = begin(sessions, ANN), begin(sessions, ANN)
    clock.now = 8.0
    assert sessions.get(first.id, ANN) is first
    clock.now = 12.0
    assert not is_there(sessions, second, ANN)
    assert is_there(sessions, first, ANN)
    assert len(sessions) == 1


@pytest.mark.parametrize("limits", [{"max_of_tenant": 2}, {"max_in_all": 2}])
def test_the_one_used_longest_ago_gives_way(limits: dict[str, int]) -> None:
    sessions = SessionRegistry(**limits)  # type: ignore[arg-type]
    first, second = begin(sessions, ANN), begin(sessions, ANN)
    assert is_there(sessions, first, ANN)
    third = begin(sessions, ANN)
    assert [is_there(sessions, each, ANN) for each in (first, second, third)] == [True, False, True]


def test_one_tenant_s_sessions_do_not_push_another_s_out() -> None:
    sessions = SessionRegistry(max_of_tenant=1)
    ann = begin(sessions, ANN)
    begin(sessions, BOB)
    bob = begin(sessions, BOB)
    assert is_there(sessions, ann, ANN)
    assert is_there(sessions, bob, BOB)


def working(made: ServerSession, meanwhile: Callable[[], None]) -> None:
    """Do something while a call of the session works."""
    with made._lock_call():
        meanwhile()


def test_what_works_does_not_give_way() -> None:
    clock = Clock()
    sessions = SessionRegistry(max_of_tenant=2, idle_seconds=10.0, now=clock)
    first, second = begin(sessions, ANN), begin(sessions, ANN)

    def full() -> None:
        third = begin(sessions, ANN)
        assert is_there(sessions, first, ANN)
        assert not is_there(sessions, second, ANN)

        def fuller() -> None:
            with pytest.raises(TooManyRequests):
                begin(sessions, ANN)
            clock.now = 20.0
            assert is_there(sessions, first, ANN)

        working(third, fuller)

    working(first, full)


def test_the_sessions_of_something_end_with_it() -> None:
    sessions = SessionRegistry()
    made = [begin(sessions, ANN) for _ in range(3)]
    sessions.end_matching(lambda each: each is not made[1])
    assert [is_there(sessions, each, ANN) for each in made] == [False, True, False]
