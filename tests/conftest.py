"""What every test run shares: torch's threads, hypothesis' profile, the real models."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

from engine.decoder import Decoder
from engine.weights import load
from tests.models import RealModel, real_model, share_gguf_readers

os.environ["HUNK_HISTORY"] = "0"  # what tests write is not kept in the cache of the person who runs them
os.environ["HUNK_CONFIG"] = ""  # what the person who runs the tests has configured is not theirs
os.environ["XDG_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="hunk-tests-")  # nor are the services that this person runs
atexit.register(shutil.rmtree, os.environ["XDG_RUNTIME_DIR"], ignore_errors=True)

torch.set_num_threads(os.cpu_count() or 1)

# A shell starts what runs in its background with SIGINT ignored, and children inherit that: no Ctrl-C would reach them.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("hunk", deadline=None)  # no timed assertions: the machine is shared
settings.load_profile("hunk")


@pytest.fixture(scope="session", autouse=True)
def _shared_gguf_readers() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        share_gguf_readers(patch)
        yield


@pytest.fixture(scope="session")
def smollm2() -> RealModel:
    """SmolLM2-135M-Instruct: Llama, tied embeddings, 9 query heads on 3 KV heads."""
    return real_model("smollm2-135m")


@pytest.fixture(scope="session")
def smollm2_decoder(smollm2: RealModel) -> Decoder:
    """SmolLM2 in float32, loaded once; no two engines may run it at the same time."""
    return Decoder(load(smollm2.gguf, torch.float32))


@pytest.fixture(scope="session")
def qwen05() -> RealModel:
    """Qwen2.5-Coder-0.5B-Instruct: Qwen2, QKV bias, 14 query heads on 2 KV heads."""
    return real_model("qwen2.5-coder-0.5b")


@pytest.fixture(scope="session")
def qwen15() -> RealModel:
    """Qwen2.5-Coder-1.5B-Instruct."""
    return real_model("qwen2.5-coder-1.5b")
