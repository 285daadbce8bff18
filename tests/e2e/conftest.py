"""What the tests with real clients share: the real service, in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.service import Running, running

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """`hunk serve` with the small model on an empty folder, its model loaded; `service.root` is the folder."""
    with running(tmp_path_factory.mktemp("root"), "--model", "smollm2-135m", "--context", "4096") as served:
        served.wait_until_ready()
        yield served
