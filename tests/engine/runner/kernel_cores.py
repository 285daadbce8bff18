"""Cores that run a card's steps on the CPU, by the kernels' references or by Triton's interpreter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
from torch import Tensor

from engine.core import EngineCore
from engine.decoder import Decoder
from engine.runner.cuda_graphs import Work
from engine.runner.cuda_runner import KernelRunner
from tests.engine.cores import make_core
from tests.engine.tiny import FAMILIES, tiny_config, tiny_decoder, tiny_parameters

HEAD_DIM = 16
"""The kernels take no smaller one."""


@cache
def kernel_model(family: str = "qwen2", *, kv_int8: bool = False) -> Decoder:
    changes = FAMILIES[family] if "latent" in FAMILIES[family] else FAMILIES[family] | {"head_dim": HEAD_DIM}
    if kv_int8:
        return Decoder(tiny_parameters(tiny_config(**changes)), kv_int8=True)
    return tiny_decoder(**changes)


@contextmanager
def by_kernels() -> Iterator[None]:
    """Cores that are made meanwhile run as on a card."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("engine.runner.cuda_runner.can_run_kernels", lambda model, config: True)
        yield


@contextmanager
def as_on_a_cpu() -> Iterator[None]:
    """Within Triton's interpreter, too, torch's operations are what runs: the other side of a comparison."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kernels.op.is_interpreting", lambda: False)
        yield


class Reruns:
    """Does without a graph what a graph does: runs the work again on its memory, into the first result's memory."""

    def __call__(self, work: Work) -> Work:
        """As `Capture`."""
        out = work()

        def rerun() -> Tensor:
            return out.copy_(work())

        return rerun


def with_graphs(core: EngineCore, most: int = 99) -> EngineCore:
    """The core with passes that are padded and replayed."""
    core._runner = KernelRunner(core.model, core._pool, core.reuse, most, Reruns())
    return core


def kernel_core(model: Decoder, *, graphs: bool = False, **limits: Any) -> EngineCore:
    """As `make_core`."""
    with by_kernels():
        core = make_core(model=model, **limits)
    assert isinstance(core._runner, KernelRunner)
    return with_graphs(core) if graphs else core
