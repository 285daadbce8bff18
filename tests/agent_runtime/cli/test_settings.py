"""Settings on the command line, `hunk config`, `hunk token`, and `hunk serve` with its tokens."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from agent_runtime.cli.serve import check_loopback
from agent_runtime.config.settings import SETTINGS
from agent_runtime.errors import BadRequest, TokensUnreadable
from agent_runtime.models.config import KV_SHARE, LoadOptions, MergeOptions
from agent_runtime.request_context import LOCAL
from agent_runtime.server.token_file import TokenFile, make_token
from agent_runtime.workspace.registry import NOT_LOADED, NOT_WATCHED, WorkspaceRegistry
from tests.agent_runtime.cli.test_cli import HUNK
from tests.agent_runtime.scripted import ScriptedMerger
from tests.agent_runtime.serving import hunk_here, serving

BLOCK = "<<<<<<< SEARCH\na = 1\n=======\na = 3\n>>>>>>> REPLACE\n"


@pytest.fixture(scope="module")
def merger() -> ScriptedMerger:
    return ScriptedMerger("a = 3\nb = 2\n")


@pytest.fixture(scope="module")
def url(merger: ScriptedMerger) -> Iterator[str]:
    with serving(merger) as url:
        yield url


@pytest.fixture
def command(tmp_path: Path) -> list[str | Path]:
    (tmp_path / "a.py").write_text("a = 1\nb = 2\n")
    (tmp_path / "expected").write_bytes("\ufeffa = 3\r\n".encode())
    return ["apply", tmp_path / "a.py", "--edit", "-", "--mode", "model", "--json"]


def test_scope_decide_and_prediction_reach_the_model(
    merger: ScriptedMerger, url: str, command: list[str | Path], tmp_path: Path
) -> None:
    options = ["--scope", "file", "--decide", "score", "--prediction", tmp_path / "expected", "--url", url]
    done = hunk_here(*command, *options, stdin=BLOCK)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["merged"] == "a = 3\nb = 2\n"
    asked = merger.seen[-1]
    assert (asked.scope, asked.decide, asked.prediction) == ("file", "score", "\ufeffa = 3\r\n")
    hunk_here(*command, "--url", url, stdin=BLOCK)
    assert (merger.seen[-1].scope, merger.seen[-1].prediction) == ("auto", None)


def test_a_prediction_needs_its_file(tmp_path: Path) -> None:
    done = hunk_here("apply", "--edit", "-", "--root", tmp_path, "--prediction", tmp_path / "x", stdin=BLOCK)
    assert isinstance(done.exception, BadRequest)
    assert "give FILE" in str(done.exception)


@pytest.mark.parametrize(("option", "value"), [("--scope", "function"), ("--decide", "toss")])
def test_values_that_there_are_not_are_usage_errors(command: list[str | Path], option: str, value: str) -> None:
    done = hunk_here(*command, option, value, stdin=BLOCK)
    assert done.exit_code == 2
    assert value in done.output


def test_the_service_of_the_settings_is_asked_with_their_token(
    url: str, command: list[str | Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f'url = "{url}"\ntoken = "sesame"\ndtype = "float32"\nreuse = "turbo"\nmodel = "another"\n')
    monkeypatch.setenv("HUNK_CONFIG", str(file))
    sent: list[httpx.Request] = []
    send = httpx.Client.send
    monkeypatch.setattr(httpx.Client, "send", lambda self, request, **more: sent.append(request) or send(self, request))
    done = hunk_here(*command, stdin=BLOCK)
    assert done.exit_code == 0, done.output
    assert sent[-1].headers["authorization"] == "Bearer sesame"
    body = json.loads(sent[-1].content)
    assert (body["model"], body["reuse"]) == (None, None), "nobody asked on this command line: the service's own hold"
    file.write_text('url = "nonsense"\n')
    assert str(hunk_here(*command, stdin=BLOCK).exception).startswith(f"{file}:1 is 'nonsense'")
    file.write_text(f'url = "{url}"\ntoken = "open sesame"\n')
    fault = str(hunk_here(*command, stdin=BLOCK).exception)
    assert fault.startswith(f"{file}:2 is no token")
    assert "open" not in fault


EDIT = "a = 1\n# ... existing code ...\n"
OPTIONS = [
    "--device",
    "cuda",
    "--dtype",
    "float16",
    "--quantize",
    "int4",
    "--kv-dtype",
    "int8",
    "--draft-model",
    "smaller",
    "--adapter",
    "my-adapter",
    "--span-disk",
    "2",
    "--batch-invariant",
]


class Stopped(Exception):
    """Raised in place of loading a model."""


@pytest.fixture
def arguments(tmp_path: Path) -> list[str | Path]:
    (tmp_path / "a.py").write_text("a = 0\n")
    (tmp_path / "edit").write_text(EDIT)
    return ["apply", tmp_path / "a.py", "--edit", tmp_path / "edit", "--mode", "model"]


def test_apply_loads_the_model_that_was_asked_for(monkeypatch: pytest.MonkeyPatch, arguments: list[str | Path]) -> None:
    asked: list[LoadOptions] = []

    def stop(name: str, settings: Any, options: LoadOptions, progress: Any) -> None:
        asked.append(options)
        raise Stopped("stopped")

    monkeypatch.setattr("agent_runtime.wiring.open_merger", stop)
    assert isinstance(hunk_here(*arguments).exception, Stopped)
    assert isinstance(hunk_here(*arguments, *OPTIONS).exception, Stopped)
    assert asked == [
        LoadOptions(kv_sequences=1),
        LoadOptions(
            "float16",
            adapter=Path("my-adapter"),
            quantize="int4",
            kv_sequences=1,
            batch_invariant=True,
            span_disk_gib=2.0,
            device="cuda",
            kv_dtype="int8",
            draft_model="smaller",
        ),
    ]


def test_serve_loads_the_model_that_was_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[tuple[LoadOptions, MergeOptions]] = []
    roots: list[list[tuple[Path, str]]] = []

    def stop(
        name: str,
        settings: Any,
        options: LoadOptions,
        progress: Any,
        merging: MergeOptions,
        workspaces: WorkspaceRegistry,
    ) -> None:
        asked.append((options, merging))
        roots.append([(each.workspace.root, each.unavailable_reason) for each in workspaces.list_visible(LOCAL)])
        raise Stopped("stopped")

    monkeypatch.setattr("agent_runtime.wiring.make_model_slot", stop)
    limits = ["--context", "300", "--max-num-seqs", "5", "--kv-gib", "0.5", "--deadline", "9", "--reuse", "fast"]
    limits += ["--span-memory", "0.25", "--max-batched-tokens", "2048", "--prefill-beside-decodes", "128"]
    limits += ["--kv-tier", "valkey://host/0", "--kv-tier-key", "key"]
    assert isinstance(hunk_here("serve").exception, Stopped)
    assert isinstance(hunk_here("serve", "--reuse", "turbo").exception, Stopped)
    assert isinstance(hunk_here("serve", "--root", tmp_path, *limits, *OPTIONS).exception, Stopped)
    assert isinstance(hunk_here("serve", "--root", tmp_path, "--no-watch", "--span-memory", "0").exception, Stopped)
    assert asked == [
        (LoadOptions(span_gib=0.25, kv_share=KV_SHARE), MergeOptions()),
        (LoadOptions(span_gib=1.0, kv_share=KV_SHARE), MergeOptions(reuse="turbo")),
        (
            LoadOptions(
                "float16",
                300,
                Path("my-adapter"),
                "int4",
                5,
                0.5,
                2,
                True,
                0.25,
                2.0,
                "cuda",
                KV_SHARE,
                2048,
                128,
                "valkey://host/0",
                Path("key"),
                "int8",
                "smaller",
            ),
            MergeOptions(9.0, "fast"),
        ),
        (LoadOptions(kv_share=KV_SHARE), MergeOptions()),
    ]
    assert roots == [[], [], [(tmp_path, NOT_LOADED)], [(tmp_path, NOT_WATCHED)]]


def test_serve_refuses_folders_that_are_none() -> None:
    for options in (["--root", "no-such-folder"], ["--allow-root", "no-such-folder"]):
        done = hunk_here("serve", *options)
        assert isinstance(done.exception, BadRequest)
        assert "no-such-folder is not a folder" in str(done.exception)


@pytest.mark.parametrize("option", range(0, len(OPTIONS), 2))
def test_a_service_loads_its_model_itself(arguments: list[str | Path], option: int) -> None:
    done = hunk_here(*arguments, "--url", "http://127.0.0.1:9", *OPTIONS[option : option + 2])
    assert isinstance(done.exception, BadRequest)
    assert "give it to the service of --url when it is started" in str(done.exception)


@pytest.mark.parametrize(("option", "value"), [("--dtype", "float64"), ("--quantize", "int2")])
def test_what_there_is_not_is_a_usage_error(arguments: list[str | Path], option: str, value: str) -> None:
    done = hunk_here(*arguments, option, value)
    assert done.exit_code == 2
    assert value in done.output


@pytest.mark.parametrize("command", ["apply", "serve"])
def test_a_device_that_is_not_there_is_refused_before_anything_is_looked_for(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str | Path], command: str
) -> None:
    monkeypatch.setattr("agent_runtime.wiring.resolve", lambda *_: pytest.fail("no model is looked for"))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    called = arguments if command == "apply" else [command]
    for device, answer in (
        ("cuda", "leave the device out to run on the CPU"),
        ("tpu", "none of cpu, cuda, cuda:N"),
    ):
        done = hunk_here(*called, "--device", device)
        assert isinstance(done.exception, BadRequest)
        assert answer in str(done.exception)


@pytest.mark.parametrize(
    ("scheme", "made_for", "device"), [("int8", "CPUs", "cuda"), ("int4", "CPUs", "mps"), ("fp8", "cards", "cpu")]
)
def test_weights_in_fewer_bits_are_refused_on_a_device_that_they_are_not_for(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str | Path], scheme: str, made_for: str, device: str
) -> None:
    monkeypatch.setattr("agent_runtime.llm.opener.resolve_device", torch.device)
    done = hunk_here(*arguments, "--device", device, "--quantize", scheme)
    assert isinstance(done.exception, BadRequest)
    assert f"quantize is '{scheme}', which is for {made_for}, and the device is {device}" in str(done.exception)


def test_balanced_is_no_default_of_a_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_runtime.wiring.make_model_slot", lambda *_: pytest.fail("nothing is loaded"))
    done = hunk_here("serve", "--reuse", "balanced")
    assert isinstance(done.exception, BadRequest)
    assert "use 'exact', or 'fast'" in str(done.exception)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLUMNS", "200")
    path = tmp_path / "hunk.toml"
    path.write_text('port = 9000\ntoken = "sesame"\n')
    monkeypatch.setenv("HUNK_CONFIG", str(path))
    monkeypatch.setenv("HUNK_DTYPE", "float32")
    return path


def test_show_says_of_every_setting_where_it_comes_from(file: Path) -> None:
    done = hunk_here("config", "show")
    assert done.exit_code == 0
    rows = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert set(rows) == {"setting", *SETTINGS}
    assert rows["port"].split() == ["port", "9000", f"{file}:1"]
    assert rows["dtype"].split() == ["dtype", "float32", "HUNK_DTYPE"]
    assert rows["host"].split() == ["host", "127.0.0.1", "default"]
    assert "sesame" not in done.output
    assert rows["token"].split()[1] == "********"


def test_show_as_json(file: Path) -> None:
    answer = json.loads(hunk_here("config", "show", "--json", "port", "dtype", "token", "kv-gib").stdout)
    assert answer["file"] == {"path": str(file), "exists": True}
    told = {name: (row["value"], row["from"], row["place"]) for name, row in answer["settings"].items()}
    assert told == {
        "port": (9000, "file", f"{file}:1"),
        "dtype": ("float32", "environment", "HUNK_DTYPE"),
        "token": ("********", "file", f"{file}:2"),
        "kv_gib": (None, "default", ""),
    }
    assert "sesame" not in hunk_here("config", "show", "--json").output


def test_show_of_what_there_is_not(file: Path) -> None:
    assert isinstance(hunk_here("config", "show", "colour").exception, BadRequest)


def test_path(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hunk_here("config", "path").stdout == f"{file}\n"
    other = tmp_path / "other.toml"
    told = json.loads(hunk_here("config", "path", "--json", "--config", other).stdout)
    assert told == {"path": str(other), "exists": False}
    monkeypatch.delenv("HUNK_CONFIG")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert hunk_here("config", "path").stdout == f"{tmp_path}/hunk/config.toml\n"


def test_check_tells_what_a_start_would_trip_over(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUNK_SOMETHING_ELSE", "1")
    done = hunk_here("config", "check")
    assert (done.exit_code, done.stdout) == (0, f"{file}: fine\nHUNK_SOMETHING_ELSE is no setting and is ignored\n")
    assert json.loads(hunk_here("config", "check", "--json").stdout)["unknown_variables"] == ["HUNK_SOMETHING_ELSE"]
    file.write_text("port = 9000\nprot = 1\n")
    fault = hunk_here("config", "check").exception
    assert isinstance(fault, BadRequest)
    assert f"{file}:2" in str(fault)
    assert str(hunk_here("serve").exception) == str(fault)
    assert str(hunk_here("models", "list").exception) == str(fault)


def test_init_writes_a_file_that_is_fine_and_never_over_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HUNK_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    target = tmp_path / "hunk" / "config.toml"
    assert hunk_here("config", "init").stdout == f"{target}\n"
    assert target.stat().st_mode & 0o777 == 0o600
    assert hunk_here("config", "check").stdout == f"{target}: fine\n"
    target.write_text("port = 1\n")
    assert isinstance(hunk_here("config", "init").exception, BadRequest)
    assert target.read_text() == "port = 1\n"
    assert isinstance(hunk_here("config", "init", tmp_path / "hunk").exception, BadRequest)
    monkeypatch.setenv("HUNK_CONFIG", "")
    assert isinstance(hunk_here("config", "init").exception, BadRequest)


def test_an_option_of_the_command_line_has_the_last_word(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []

    def stop(*arguments: Any) -> None:
        seen.append(arguments[2])
        raise ZeroDivisionError

    monkeypatch.setattr("agent_runtime.wiring.make_model_slot", stop)
    assert isinstance(hunk_here("serve").exception, ZeroDivisionError)
    assert isinstance(hunk_here("serve", "--dtype", "float16").exception, ZeroDivisionError)
    assert isinstance(hunk_here("serve", "--config", file.with_name("none")).exception, BadRequest)
    file.write_text("batch_invariant = true\n")
    assert isinstance(hunk_here("serve", "--no-batch-invariant").exception, ZeroDivisionError)
    assert isinstance(hunk_here("serve").exception, ZeroDivisionError)
    told = [(getattr(each, "dtype", None), getattr(each, "batch_invariant", None)) for each in seen]
    assert told == [("float32", False), ("float16", False), ("float32", False), ("float32", True)]


@pytest.fixture
def token_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HUNK_CONFIG", str(tmp_path / "config.toml"))
    (tmp_path / "config.toml").touch()
    return tmp_path / "tokens.json"


def test_a_token_is_shown_once_and_known_from_then_on(token_file: Path) -> None:
    made = hunk_here("token", "new", "ann", "--scope", "read", "--tenant", "acme", "--days", "2")
    assert made.exit_code == 0
    text = made.stdout.strip()
    now = datetime.now(UTC)
    principal = TokenFile(token_file).read().find_principal(text, now)
    assert (principal.tenant, principal.scopes) == ("acme", {"read"})
    assert f"--tokens {token_file}" in made.stderr
    listed = hunk_here("token", "list", "--json").stdout
    (row,) = json.loads(listed)["tokens"]
    assert (row["name"], row["tenant"], row["scopes"]) == ("ann", "acme", ["read"])
    assert 1.9 < (datetime.fromisoformat(row["expires"]) - now).total_seconds() / 86400 < 2.1
    assert text.split("_", 2)[2] not in listed + token_file.read_text()


def test_a_token_may_apply_and_read_where_nothing_is_said(token_file: Path) -> None:
    made = json.loads(hunk_here("token", "new", "ann", "--json").stdout)
    assert (made["tenant"], made["scopes"], made["expires"]) == ("ann", ["apply", "read"], None)
    assert "ann" in hunk_here("token", "list").stdout
    assert TokenFile(token_file).read().find_token("ann") is not None


def test_a_revoked_token_is_gone(token_file: Path) -> None:
    text = hunk_here("token", "new", "ann").stdout
    hunk_here("token", "new", "bob")
    assert json.loads(hunk_here("token", "revoke", text.split("_")[1], "--json").stdout)["revoked"]["name"] == "ann"
    assert [token.name for token in TokenFile(token_file).read().tokens] == ["bob"]
    assert isinstance(hunk_here("token", "revoke", "ann").exception, BadRequest)


def test_what_cannot_be_done_is_said(token_file: Path) -> None:
    assert isinstance(hunk_here("token", "list").exception, TokensUnreadable)
    hunk_here("token", "new", "ann")
    for arguments in (["ann"], ["a b"], [""], ["-"], ["x" * 65], ["bob", "--tenant", "a/b"]):
        assert hunk_here("token", "new", *arguments).exit_code != 0, arguments
    assert isinstance(hunk_here("token", "new", "bob", "--scope", "root").exception, BadRequest)
    assert len(TokenFile(token_file).read().tokens) == 1


def test_tokens_that_are_made_at_once_are_all_kept(token_file: Path) -> None:
    def add(number: int) -> None:
        token, _ = make_token(f"n{number}", "acme", frozenset(), datetime.now(UTC))
        TokenFile(token_file).change(lambda known: known.add_token(token))

    threads = [threading.Thread(target=add, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(TokenFile(token_file).read().tokens) == 8


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.1", "::ffff:192.0.2.1"])
def test_others_are_not_let_in_without_a_token(host: str) -> None:
    with pytest.raises(BadRequest, match="hunk token new"):
        check_loopback(host)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "localhost", "no-such-host.invalid"])
def test_this_machine_is(host: str) -> None:
    check_loopback(host)


def test_serve_refuses_to_listen_wider_without_tokens_and_with_a_file_that_is_none(tmp_path: Path) -> None:
    environ = os.environ | {"HUNK_CONFIG": ""}
    for arguments, said in (
        (["--host", "0.0.0.0"], "hunk token new"),
        (["--host", "0.0.0.0", "--tokens", str(tmp_path / "none.json")], "No such file"),
    ):
        done = subprocess.run(
            [HUNK, "serve", "--port", "0", *arguments], capture_output=True, text=True, check=False, env=environ
        )
        assert (done.returncode, done.stdout) == (2, "")
        assert said in done.stderr
        assert done.stderr.count("\n") == 1
