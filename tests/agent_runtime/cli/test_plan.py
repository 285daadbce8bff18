"""`hunk plan`: figures of a model on a card or here, and errors that say what to give."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agent_runtime.cli.main import app
from agent_runtime.config.sources import make_model_settings
from agent_runtime.errors import HunkError
from engine.families import parse_config
from engine.roofline.machine import SHAPES
from engine.weights.gguf import GGUFModel


def plan(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["plan", *arguments, "--json"])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_a_model_on_a_card() -> None:
    facts = plan("qwen2.5-coder-7b", "--device", "h200", "--context", "4096", "--users", "8")
    assert facts["kv_token_kb"] == pytest.approx(57.344)
    assert facts["users_that_fit"] > 400
    assert set(facts["passes"]) >= {"prompt of 4,096", "decode, 8 users", "verify 64, 1 user"}
    assert facts["passes"]["verify 1, 1 user"]["bound"] == "memory"
    assert facts["passes"]["prompt of 4,096"]["bound"] == "compute"
    assert [each["name"] for each in facts["products"]][-1] == "LM head"
    assert facts["variants"]["2 cards"]["decode_tok_s"] > facts["variants"]["as it is"]["decode_tok_s"]


def test_replicas_multiply_users_and_tokens_and_a_slow_tier_does_not_pay() -> None:
    one = plan("qwen3-8b", "--device", "l4", "--weights", "fp8")
    three = plan("qwen3-8b", "--device", "l4", "--weights", "fp8", "--replicas", "3", "--tier-gb-s", "0.001")
    assert three["users_that_fit"] == 3 * one["users_that_fit"]
    assert three["decode_tok_s"] == pytest.approx(3 * one["decode_tok_s"])
    assert one["tier"]["fetch_s"] < one["tier"]["prompt_s"] < three["tier"]["fetch_s"]
    assert 0.001 < three["tier"]["break_even_gb_s"] < 12.5


def test_tables_name_what_they_show() -> None:
    shown = CliRunner().invoke(app, ["plan", "qwen3-coder-30b-a3b", "--device", "h100", "--cards", "2"]).output
    assert "2 x NVIDIA H100 SXM" in shown
    for part in ("expert gate and up", "decode, 16 users", "CLA, two layers a KV", "a shared tier does not pay"):
        assert part in shown


def test_a_config_json_or_its_folder_is_planned(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(SHAPES["qwen3-8b"]))
    for given in (str(file), str(tmp_path)):
        assert plan(given, "--device", "h200")["weight_gb"] == plan("qwen3-8b", "--device", "h200")["weight_gb"]


def test_the_curves_of_a_plan_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "plan.png"
    plan("qwen2.5-coder-7b", "--device", "h200", "--plot", str(file))
    assert file.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["qwen2.5-coder-7", "--device", "h200"], "did you mean 'qwen2.5-coder-7b'?"),
        (["nothing-like-it", "--device", "h200"], "known are smollm2-135m, "),
        (["qwen3-8b", "--device", "gtx"], "no card is called 'gtx'; give one of b200, "),
        (["qwen3-8b", "--device", "a100", "--weights", "fp8"], "does not multiply 'fp8' weights; give one of bfloat16"),
        (["qwen3-8b", "--device", "h200", "--cards", "3"], "32 heads do not divide among 3 cards"),
        (["qwen3-8b", "--device", "h200", "--plot", "/nowhere/at/all.png"], "--plot cannot write /nowhere/at/all.png"),
    ],
)
def test_what_cannot_be_planned_is_refused_in_a_line(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["plan", *arguments])
    assert isinstance(result.exception, HunkError)
    assert result.exception.exit_code == 2
    assert said in str(result.exception)
    assert "\n" not in str(result.exception)


def test_a_damaged_config_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    result = CliRunner().invoke(app, ["plan", str(tmp_path), "--device", "h200"])
    assert "cannot be planned: architecture (none named) is not supported" in str(result.exception)


@pytest.mark.parametrize("name", ["smollm2-135m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"])
def test_the_shapes_are_those_of_the_files(name: str) -> None:
    file = next((make_model_settings(os.environ).cache_dir / "models" / name).glob("*.gguf"), None)
    if file is None:
        pytest.skip(f"{name} is not pulled")
    found, known = GGUFModel(file).config, parse_config(SHAPES[name])
    for field in ("hidden_size", "num_layers", "num_heads", "num_kv_heads", "head_dim", "ffn_size", "vocab_size"):
        assert getattr(found, field) == getattr(known, field)


def test_a_model_that_a_card_does_not_hold_has_no_users() -> None:
    shown = CliRunner().invoke(app, ["plan", "deepseek-v3", "--device", "h200"]).output
    assert "the weights do not fit: take fewer bits (--weights) or more --cards; if they did, 16 users write" in shown
    assert "tokens fit" not in shown


@pytest.mark.parametrize("model", ["no.gguf", "a/folder"])
def test_a_path_at_which_nothing_is_says_so(model: str) -> None:
    result = CliRunner().invoke(app, ["plan", model, "--device", "h200"])
    assert isinstance(result.exception, HunkError)
    assert str(result.exception).startswith(f"there is no model at {model}; give a config.json")
