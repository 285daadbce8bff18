"""The processes of the ranks after the first, which is in the service's own process."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from engine.device import use_device
from engine.errors import RankLost
from engine.layers import Quantization
from engine.tensor_parallel.decoder import ShardDecoder
from engine.tensor_parallel.group import Command, RankGroup, find_memory_folder
from engine.tensor_parallel.runner import follow
from engine.tensor_parallel.shard import Shard, load_shard
from engine.weights.checkpoint import LoraAdapter, read_config
from engine.weights.gguf import GGUFModel

STOP_SECONDS = 10.0
"""How long a rank may take to end when it is told to."""


@dataclass(frozen=True, slots=True)
class RankSetup:
    """What each rank loads. source: a GGUF file, or a folder of safetensors. device: "cpu", or "cuda", of which rank i
    takes number i. adapter: a LoRA folder that is merged.
    """

    source: Path
    size: int
    dtype: torch.dtype
    quantize: Quantization | None = None
    activations: torch.dtype | None = None
    reason: str = "as asked"
    kv_int8: bool = False
    device: str = "cpu"
    adapter: Path | None = None

    def get_device(self, rank: int) -> torch.device:
        """Return the device of a rank."""
        return torch.device(self.device, rank) if self.device == "cuda" else torch.device(self.device)

    def build(self, group: RankGroup) -> ShardDecoder:
        """Load the part of a rank; raises WeightsError."""
        source = GGUFModel(self.source) if self.source.is_file() else self.source
        adapter = None if self.adapter is None else LoraAdapter(self.adapter)
        parameters = load_shard(source, self.dtype, Shard(group.rank, self.size), adapter, group.device)
        return ShardDecoder(parameters, self.quantize, self.activations, self.reason, group=group, kv_int8=self.kv_int8)


class Ranks:
    """The other ranks' processes. If one ends, every call of the group raises RankLost, which says so."""

    def __init__(
        self, group: RankGroup, processes: list[BaseProcess], folder: tempfile.TemporaryDirectory[str]
    ) -> None:
        self.group = group
        self._processes = processes
        self._folder = folder
        self._is_closing = False
        threading.Thread(target=self._watch, name="ranks", daemon=True).start()

    def close(self) -> None:
        """Stop the ranks, and leave the group; a second call does nothing."""
        if self._is_closing:
            return
        self._is_closing = True
        with suppress(RankLost):
            self.group.send(Command.STOP)
        for process in self._processes:
            process.join(STOP_SECONDS)
        self._kill()
        self.group.close()

    def _kill(self) -> None:
        self._is_closing = True
        for process in self._processes:
            process.kill()
            process.join()
        self._folder.cleanup()

    def _watch(self) -> None:
        ended = wait([each.sentinel for each in self._processes])
        if not self._is_closing:
            gone = next(each for each in self._processes if each.sentinel in ended)
            gone.join()
            self.group.lost = f"{gone.name} of this model has ended (exit code {gone.exitcode}); start the service anew"


def start_ranks(setup: RankSetup) -> ShardDecoder:
    """Start a process for each other rank, and load the first rank's part here; both take as long.

    They end with the decoder that is returned. On a CPU the ranks share its cores. Raises WeightsError if the model
    does not divide by the ranks, RankLost if one of them ends.
    """
    source = GGUFModel(setup.source) if setup.source.is_file() else setup.source
    Shard(0, setup.size).narrow(source.config if isinstance(source, GGUFModel) else read_config(source))
    folder = tempfile.TemporaryDirectory(prefix="hunk-ranks-", dir=find_memory_folder())
    meeting, context = Path(folder.name) / "meeting", multiprocessing.get_context("spawn")
    num_threads = max(1, torch.get_num_threads() // setup.size)
    processes: list[BaseProcess] = []
    for rank in range(1, setup.size):
        name, args = f"rank {rank}", (setup, rank, meeting, num_threads)
        processes.append(context.Process(target=run_rank, args=args, name=name, daemon=True))
        processes[-1].start()
        atexit.register(processes[-1].kill)  # else the interpreter's exit waits for it, as it ignores SIGTERM
    if setup.device == "cpu":
        torch.set_num_threads(num_threads)
    try:
        ranks = Ranks(RankGroup(0, setup.size, meeting, setup.get_device(0)), processes, folder)
    except BaseException:
        for each in processes:
            each.kill()
        folder.cleanup()
        raise
    try:
        with use_device(setup.get_device(0)):
            decoder = setup.build(ranks.group)
        decoder.on_close = ranks.close
        return decoder
    except BaseException:
        ranks.close()
        raise


def run_rank(setup: RankSetup, rank: int, meeting: Path, num_threads: int) -> None:
    """Be a rank until the first one says to stop, or is gone."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the first rank gets them too, finishes requests, and says to stop
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_first, name="first rank", daemon=True).start()
    torch.set_num_threads(num_threads)
    device = setup.get_device(rank)
    exit_code = 0
    try:
        with use_device(device):
            group = RankGroup(rank, setup.size, meeting, device)
            follow(setup.build(group))
            group.close()
    except RankLost:
        pass
    except Exception as error:  # noqa: BLE001 -- the outermost frame of this process
        sys.stderr.write(f"rank {rank}: {type(error).__name__}: {error}\n")
        exit_code = 1
    os._exit(exit_code)  # threads of the link may hang in a process whose first rank is gone


def _end_with_first() -> None:
    """End this process when the first rank's does, also while they have not met."""
    first = multiprocessing.parent_process()
    assert first is not None, "it was started by the first rank"
    wait([first.sentinel])
    os._exit(0)
