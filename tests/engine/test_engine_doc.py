"""The examples of docs/engine.md run in order on a real model, and so does the program that the page names."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from agent_runtime.models.config import ModelSettings
from agent_runtime.models.loader import load_model
from agent_runtime.models.store import ModelStore, locate_copy, resolve
from agent_runtime.process import build_environment
from engine.engine_config import EngineConfig
from engine.scheduler import SchedulerConfig
from engine.types import GenerationRequest
from tests.models import RealModel

ROOT = Path(__file__).resolve().parents[2]
DOC = (ROOT / "docs" / "engine.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", DOC, re.DOTALL | re.MULTILINE)
NAMED = set(re.findall(r"`(?:\w+\.)?(\w+)`", DOC))


@pytest.fixture
def model_folder(smollm2: RealModel, tmp_path: Path) -> Path:
    """A folder that holds SmolLM2, and an adapter of it, by the names that the document has for them."""
    cache_dir = ModelSettings.from_env(os.environ).cache_dir
    files = resolve(smollm2.name, ModelStore(cache_dir))
    if not locate_copy(files, cache_dir).is_dir():
        load_model(files, cache_dir, limits=EngineConfig(64))
    (tmp_path / smollm2.name).symlink_to(locate_copy(files, cache_dir))
    adapter, module = tmp_path / "my-adapter", "base_model.model.model.layers.0.self_attn.o_proj"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 4}))
    pair = {f"{module}.lora_A.weight": torch.ones(2, 576), f"{module}.lora_B.weight": torch.ones(576, 2)}
    save_file(pair, adapter / "adapter_model.safetensors")
    return tmp_path


def python(*arguments: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """A process whose torch threads sleep while they wait, for tests run beside others."""
    env = os.environ | build_environment(os.environ)
    return subprocess.run([sys.executable, *arguments], cwd=cwd, env=env, capture_output=True, text=True, timeout=300)


def test_every_block_runs_behind_those_before_it(model_folder: Path) -> None:
    assert len(BLOCKS) >= 10
    (model_folder / "engine_doc.py").write_text("\n".join(BLOCKS))
    done = python("engine_doc.py", cwd=model_folder)
    assert done.returncode == 0, done.stderr
    assert "exceed the context of 2048" in done.stdout
    assert "the request's time is over" in done.stdout


def test_every_field_that_a_caller_may_set_is_named() -> None:
    asked = {field.name for cls in (GenerationRequest, SchedulerConfig) for field in fields(cls)}
    assert asked <= NAMED
    assert {field.name for field in fields(EngineConfig)} - NAMED <= {"scheduler", "check_integrity"}


def test_the_defaults_are_those_that_it_names() -> None:
    rows = dict(re.findall(r"^\| `(?:scheduler\.)?(\w+)` \| (\d+) \|", DOC, re.MULTILINE))
    actual = {field.name: field.default for cls in (EngineConfig, SchedulerConfig) for field in fields(cls)}
    assert rows
    assert {name: float(value) for name, value in rows.items()} == {name: actual[name] for name in rows}


@pytest.mark.usefixtures("smollm2")
def test_the_example_shows_requests_joining_and_leaving() -> None:
    done = python("examples/continuous_batching.py")
    assert done.returncode == 0, done.stderr
    steps = [int(number) for number in re.findall(r"^step +(\d+):", done.stdout, re.MULTILINE)]
    assert len(steps) == 6
    assert steps == sorted(steps)
    assert steps[0] < steps[-1]
    waiting = [int(number) for number in re.findall(r"go on, (\d+) wait", done.stdout)]
    assert waiting[0] == 3, "three run, three wait"
    assert waiting[-1] == 0
    last = re.search(r"^6 answers in (\d+) passes", done.stdout, re.MULTILINE)
    assert last
    assert int(last[1]) == steps[-1]
