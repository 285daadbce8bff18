"""Two turns on one file through the service: the second takes over what did not change, the first answer included.

SmolLM2, float32. It is too small to copy a file, so its answers are dictated where they matter; the KV is its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from agent_runtime.llm.merger import ModelMerger
from agent_runtime.models.loader import LoadedModel
from agent_runtime.models.tokenizer import TokenizerBundle, read_gguf_tokenizer
from agent_runtime.prompt.forms import PromptForm
from agent_runtime.workspace.index import WatchedIndex
from engine.decoder import Decoder
from engine.engine import Engine
from engine.engine_config import EngineConfig
from engine.types import GenerationRequest, Proposer
from engine.worker import Stream
from tests.agent_runtime.serving import serving
from tests.models import RealModel

NAMES = ["area", "volume", "weight", "price", "power", "angle", "height", "length", "speed", "phase", "depth", "width"]
FILE = "\n\n".join(
    f'def {name}(value):\n    """The {name} of a value."""\n    scaled = value * {number + 2}\n    return scaled\n'
    for number, name in enumerate(NAMES)
)
OLD, NEW = "def width(value):", "def width_of(value):"
OWN = "How deep it is: one more than the floor of its binary logarithm, or nothing where there is none, as for zero."
"""Of the model's own: it stands in no prompt before the second turn's."""

FIRST = FILE.replace(OLD, NEW).replace("The depth of a value.", OWN)
CHANGED = FIRST.replace("scaled = value * 3", "scaled = value * 33")
SECOND = CHANGED.replace("def speed(value):", "def speed_of(value):")


def edit(old: str, new: str) -> str:
    return f"<<<<<<< SEARCH\n{old}\n=======\n{new}\n>>>>>>> REPLACE\n"


@dataclass
class Dictated:
    """An engine that writes what it is told to, if anything."""

    engine: Engine
    text: TokenizerBundle
    answer: str | None = None
    fault: Exception | None = None

    @property
    def max_seq_len(self) -> int:
        return self.engine.max_seq_len

    def generate(self, request: GenerationRequest, proposer: Proposer | None = None) -> Stream:
        if self.answer is not None:
            forced = self.text.tokenizer.encode(self.answer + "</updated-code>")
            request = replace(request, forced_ids=forced, max_new_tokens=len(forced))
        return self.engine.generate(request, proposer)

    def close(self) -> None:
        self.engine.close()


@pytest.fixture(scope="module")
def text_side(smollm2: RealModel) -> TokenizerBundle:
    tokenizer, metadata = read_gguf_tokenizer(smollm2.gguf)
    plain = PromptForm("plain", "You merge edits into code.", ())  # without an example, which is run for each service
    return replace(metadata.to_bundle(tokenizer), form=plain)


@contextmanager
def service(decoder: Decoder, text: TokenizerBundle, root: Path) -> Iterator[tuple[str, Dictated, WatchedIndex]]:
    config = EngineConfig(2048, span_bytes=150_000_000, check_integrity=True)
    engine = Dictated(Engine(decoder, text.tokenizer.token_bytes(), config), text)
    files = WatchedIndex(root, text.tokenizer)
    loaded = LoadedModel("smollm2", cast(Engine, engine), text, 0.0, 0)
    with serving(ModelMerger(loaded, files=files), root) as url:
        yield url, engine, files


def asked(url: str, change: str, **options: Any) -> dict[str, Any]:
    body = {"path": "a.py", "edit": change, "mode": "model", "scope": "file"} | options
    answer = httpx.post(f"{url}/apply", json=body, timeout=300)
    assert answer.status_code == 200, answer.text
    return cast(dict[str, Any], answer.json())


def test_the_second_turn_runs_what_changed_and_exact_is_what_a_cold_service_gives(
    smollm2_decoder: Decoder, text_side: TokenizerBundle, tmp_path: Path
) -> None:
    file = tmp_path / "a.py"
    file.write_text(FILE)
    second = edit("def speed(value):", "def speed_of(value):")
    with service(smollm2_decoder, text_side, tmp_path) as (url, engine, files):
        assert files.wait(60)
        engine.answer = FIRST
        turn = asked(url, edit(OLD, NEW), reuse="fast")
        assert (turn["status"], turn["merged"]) == ("rejected", FIRST), "a line is the model's own"
        assert turn["usage"]["reused_approximate"] == 0, "nothing was there"

        file.write_text(CHANGED)
        engine.answer = SECOND
        turn = asked(url, second, reuse="fast")
        assert (turn["status"], turn["merged"]) == ("merged", SECOND)
        usage = turn["usage"]
        assert usage["cached"] > 0
        assert usage["reused_approximate"] > 100
        assert usage["cached"] + usage["reused_approximate"] + usage["recomputed"] == usage["prompt"]
        assert sum(usage["recomputed_by"].values()) == usage["recomputed"]
        num_own = len(text_side.tokenizer.encode(OWN))
        assert usage["recomputed_by"]["changed"] < num_own, "what the model wrote is found, as KV of its answer"

        engine.answer = None
        exact = asked(url, second, reuse="exact", max_tokens=8)
        assert exact["usage"]["reused_approximate"] == 0
        assert 0 < exact["usage"]["cached"] < usage["cached"] + usage["reused_approximate"]
    with service(smollm2_decoder, text_side, tmp_path) as (url, _, _):
        cold = asked(url, second, max_tokens=8)
        assert cold["usage"]["cached"] == 0
        assert exact["merged"] == cold["merged"]
        assert exact["files"] == cold["files"]
