"""The settings of the shared KV tier: what is refused at the start, with words that help, and what is never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_runtime.config.sources import make_service_options, resolve
from agent_runtime.errors import BadRequest
from agent_runtime.llm.opener import make_engine_config
from agent_runtime.models.config import LoadOptions, ModelSettings, read_tier_key
from agent_runtime.wiring import open_model
from tests.agent_runtime.cli.test_settings import hunk_here

URL = "valkey://:sesame@host/0"


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_text("0f" * 32 + "\n")
    path.chmod(0o600)
    return path


def test_the_engine_gets_url_and_key(key: Path, tmp_path: Path) -> None:
    environ = {"HUNK_CONFIG": "", "HUNK_KV_TIER": URL, "HUNK_KV_TIER_KEY": str(key)}
    options = make_service_options(resolve(environ).values)
    config = make_engine_config(options, tmp_path)
    assert (config.tier_url, config.tier_key) == (URL, b"\x0f" * 32)
    for shown in (repr(options), repr(config)):
        assert "sesame" not in shown
        assert "0f0f" not in shown


def test_without_the_flag_there_is_no_tier(tmp_path: Path) -> None:
    assert make_engine_config(LoadOptions(), tmp_path).tier_url == ""


@pytest.mark.parametrize(
    ("text", "mode", "message"),
    [
        ("0f" * 31, 0o600, "does not hold 64 hex digits; `openssl rand -hex 32"),
        ("0f" * 33, 0o600, "does not hold 64 hex digits"),
        ("zz" * 32, 0o600, "does not hold 64 hex digits"),
        ("", 0o600, "does not hold 64 hex digits"),
        ("0f" * 32, 0o640, "run `chmod 600 "),
        ("0f" * 32, 0o604, "run `chmod 600 "),
    ],
)
def test_a_key_that_is_bad_or_readable_by_others_is_refused(key: Path, text: str, mode: int, message: str) -> None:
    key.write_text(text)
    key.chmod(mode)
    with pytest.raises(BadRequest, match=message) as caught:
        read_tier_key(LoadOptions(kv_tier=URL, kv_tier_key=key))
    assert "0f0f" not in str(caught.value)


def test_a_key_that_is_missing_is_refused_before_a_model_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent_runtime.wiring.resolve", lambda *_: pytest.fail("a model is looked for"))
    done = hunk_here("serve", "--kv-tier", URL, "--kv-tier-key", tmp_path / "none")
    assert isinstance(done.exception, BadRequest)
    assert "openssl rand -hex 32" in str(done.exception)
    with pytest.raises(BadRequest):
        open_model("smollm2-135m", ModelSettings(tmp_path), LoadOptions(kv_tier=URL))


@pytest.mark.parametrize("options", [LoadOptions(kv_tier=URL), LoadOptions(kv_tier_key=Path("key"))])
def test_url_and_key_belong_together(options: LoadOptions) -> None:
    with pytest.raises(BadRequest, match="belong together"):
        read_tier_key(options)


def test_a_url_of_another_kind_is_refused(key: Path) -> None:
    with pytest.raises(BadRequest, match="begins with valkey://") as caught:
        read_tier_key(LoadOptions(kv_tier="http://:sesame@host", kv_tier_key=key))
    assert "sesame" not in str(caught.value)


@pytest.mark.parametrize("package", ["cryptography", "valkey"])
def test_a_missing_package_says_what_to_install(key: Path, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.util import find_spec

    monkeypatch.setattr(
        "agent_runtime.models.config.find_spec", lambda name: None if name == package else find_spec(name)
    )
    with pytest.raises(BadRequest, match=f"needs {package}: `pip install 'hunk-apply\\[scale\\]'`"):
        read_tier_key(LoadOptions(kv_tier=URL, kv_tier_key=key))


def test_the_url_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUNK_KV_TIER", URL)
    shown = hunk_here("config", "show")
    assert shown.exit_code == 0
    assert "sesame" not in shown.output
