"""Variables of a process that runs models; those that the user has set stay."""

from __future__ import annotations

import subprocess
import sys

import pytest

from agent_runtime.process import build_environment, build_spin_environment


def test_threads_spin_briefly_and_kernels_are_not_hoarded() -> None:
    assert build_environment({}) == {
        "GOMP_SPINCOUNT": "2000",
        "LRU_CACHE_CAPACITY": "128",
        "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128",
    }


@pytest.mark.parametrize("environ", [{"OMP_WAIT_POLICY": "ACTIVE"}, {"GOMP_SPINCOUNT": "7"}])
def test_what_the_user_has_decided_of_threads_stays(environ: dict[str, str]) -> None:
    assert build_spin_environment(environ) == {}
    assert "GOMP_SPINCOUNT" not in build_environment(environ)


@pytest.mark.parametrize("name", ["LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"])
def test_what_the_user_has_decided_of_caches_stays(name: str) -> None:
    assert build_environment({name: "5"}) == {"GOMP_SPINCOUNT": "2000"}


def test_it_is_refused_where_it_comes_too_late() -> None:
    code = "import torch\nfrom agent_runtime.process import set_environment\nset_environment()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "AssertionError: OpenMP and oneDNN read their settings when they are loaded" in done.stderr
