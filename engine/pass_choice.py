"""Chooses how an engine's passes run, and takes the memory that they work on."""

from __future__ import annotations

from engine.cuda.inputs import NUM_SPARE_PAGES
from engine.cuda.passes import KernelPasses, runs_by_kernels
from engine.engine_config import EngineConfig
from engine.kv_pool import KVPool
from engine.kv_reuse import KVReuse, kv_reuse
from engine.model import Decoder
from engine.passes import Passes
from engine.torch_passes import TorchPasses
from kernels.tuning import use_folder


def pool_and_passes(model: Decoder, config: EngineConfig) -> tuple[KVPool, KVReuse | None, Passes]:
    """The pool, what is kept of earlier prompts beside it, and what runs passes over both.

    Raises EngineError where there is no memory for them, ValueError where the pool would hold nothing.
    """
    device, dtype = model.weights.device, model.weights.dtype
    num_pages, by_kernels = config.num_pages(model.config, dtype), runs_by_kernels(model, config)
    num_spare = NUM_SPARE_PAGES if by_kernels else 0
    pool = KVPool(model.config, num_pages, config.page_size, device, dtype, num_spare)
    reuse = kv_reuse(config, model, pool)
    if not by_kernels:
        return pool, reuse, TorchPasses(model, pool, reuse)
    if config.kernels_dir is not None:
        use_folder(config.kernels_dir)
    return pool, reuse, KernelPasses(model, pool, reuse, config.most_graphs)
