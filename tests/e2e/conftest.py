"""What the tests with real clients share: the real service, in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.service import Running, scripted


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """`hunk serve` on an empty folder, which is `service.root`; its model goes on and on, whatever it is asked."""
    folder = tmp_path_factory.mktemp("root")
    with scripted(folder, folder.with_suffix(".json"), arguments=["--context", "4096"]) as served:
        yield served
