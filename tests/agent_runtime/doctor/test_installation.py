"""`hunk doctor` without arguments: what it finds on this machine, and what it says about a bad one."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from agent_runtime.cli.doctor import print_findings
from agent_runtime.config import resolve
from agent_runtime.doctor import installation
from agent_runtime.doctor.installation import Finding, examine
from agent_runtime.local_services import announce
from tests.agent_runtime.serving import hunk_here


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HUNK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HUNK_PORT", "0")
    return tmp_path / "cache"


def examined(**environ: str) -> dict[str, Finding]:
    return {finding.name: finding for finding in examine(resolve(environ))}


def test_everything_is_examined_and_printed() -> None:
    done = hunk_here("doctor")
    assert done.exit_code == 0
    for name in ("hunk", "processor", "memory", "torch", "models", "disk", "port", "settings"):
        assert f"  {name} " in done.stdout
    rows = json.loads(hunk_here("doctor", "--json").stdout)["findings"]
    assert {row["status"] for row in rows} <= {"good", "note", "bad"}
    assert rows[0]["name"] == "hunk"


def test_a_model_that_is_not_pulled_is_a_note_with_the_command() -> None:
    found = examined()["models"]
    assert found.status == "note"
    assert "`hunk models pull qwen2.5-coder-1.5b`" in found.what
    assert examined(HUNK_MODEL="none")["models"].status == "good"


@pytest.mark.parametrize(
    ("flags", "status", "words"),
    [
        ({"avx2", "avx512f", "avx512_vnni", "avx512_bf16"}, "good", "avx512_bf16"),
        ({"avx2", "avx512f", "avx512_vnni"}, "good", "int8"),
        ({"avx2"}, "note", "float32 and are slow"),
        (set(), "good", "a processor"),
    ],
)
def test_the_processor_decides_how_models_run(
    monkeypatch: pytest.MonkeyPatch, flags: set[str], status: str, words: str
) -> None:
    monkeypatch.setattr(installation, "_read_processor", lambda: ("a processor", frozenset(flags)))
    found = examined()["processor"]
    assert found.status == status
    assert words in found.what


def test_too_little_memory_names_what_the_model_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "_read_memory", lambda: (4 << 30, 1 << 30))
    found = examined()["memory"]
    assert (found.status, "takes up to 5 GiB" in found.advice) == ("bad", True)
    monkeypatch.setattr(installation, "_read_memory", lambda: (0, 0))
    assert "memory" not in examined()


def test_without_torch_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "find_spec", lambda name: None)
    found = examined()
    assert "pip install 'hunk-apply[model]'" in found["torch"].advice
    assert "compiler" not in found


def test_a_port_that_is_taken_by_others_and_one_of_ours(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        assert examined(HUNK_PORT=port)["port"].status == "note"
        with announce(f"http://127.0.0.1:{port}", "qwen", [tmp_path]):
            found = examined(HUNK_PORT=port)
    assert "port" not in found
    assert str(tmp_path) in found["service"].what


def test_advice_is_below_what_it_is_about(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    print_findings([Finding("disk", "bad", "full", "Empty it.")], Console())
    assert capsys.readouterr().out == f"bad   disk         full\n{'':19}Empty it.\n"
