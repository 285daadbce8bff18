"""An engine with SmolLM2 in float32, and the number of torch's threads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from engine.decoder import Decoder
from engine.engine import Engine
from tests.models import RealModel


@pytest.fixture(scope="session")
def smollm2_engine(smollm2: RealModel, smollm2_decoder: Decoder) -> Engine:
    return Engine(smollm2_decoder, smollm2.tokenizer.token_bytes(), 2048)


@pytest.fixture(autouse=True)
def _threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """One thread for tiny models: waking a second one takes longer than their matrices."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if "smollm2" in request.fixturenames else 1)
    yield
    torch.set_num_threads(before)
