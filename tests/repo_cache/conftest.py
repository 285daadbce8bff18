"""The tokenizers of two models of the catalogue."""

from __future__ import annotations

import pytest

from repo_cache.tokenizer import BPETokenizer
from tests.models import real_model
from tests.repo_cache.hostile import TOKENIZERS


@pytest.fixture(scope="module", params=TOKENIZERS)
def tokenizer(request: pytest.FixtureRequest) -> BPETokenizer:
    return real_model(request.param).tokenizer
