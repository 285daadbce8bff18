"""The user's own OpenMP settings win."""

from __future__ import annotations

import pytest

from agent_runtime.threads import spin_settings


def test_threads_spin_briefly_unless_the_user_has_decided() -> None:
    assert spin_settings({}) == {"GOMP_SPINCOUNT": "2000"}


@pytest.mark.parametrize("environ", [{"OMP_WAIT_POLICY": "ACTIVE"}, {"GOMP_SPINCOUNT": "7"}])
def test_what_the_user_has_decided_stays(environ: dict[str, str]) -> None:
    assert spin_settings(environ) == {}
