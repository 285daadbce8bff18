"""What is decided before replicas are asked: who may reach them, how they load, and which one a prompt goes to."""

from __future__ import annotations

import json
import os
import pickle
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent_runtime.cli.main import app
from agent_runtime.cluster.client import make_affinity_key
from agent_runtime.cluster.config import ReplicaConfig
from agent_runtime.cluster.ray_cluster import TLS_FILES, check_doors, make_session_folder, write_config
from agent_runtime.errors import BadRequest, Busy, EditRefused, HunkError, ModelUnavailable, TooLarge
from agent_runtime.llm.interface import ChatMessage, ChatRequest, EncodedPrompt, ModelTask
from agent_runtime.models.config import LoadOptions, MergeOptions, ModelSettings
from agent_runtime.models.tokenizer import read_gguf_tokenizer
from agent_runtime.request_context import RequestContext
from agent_runtime.types import ApplyRequest, Usage
from editor.formats import parse
from editor.types import Unresolved
from tests.models import RealModel

TOKEN = {"RAY_AUTH_MODE": "token"}


class TestDoors:
    @pytest.mark.parametrize("environ", [{}, {"RAY_AUTH_MODE": "disabled"}])
    def test_a_cluster_that_asks_for_no_token_is_refused(self, environ: dict[str, str]) -> None:
        with pytest.raises(BadRequest, match="RAY_AUTH_MODE=token"):
            check_doors("127.0.0.1:6379", environ)

    @pytest.mark.parametrize("address", ["127.0.0.1:6379", "[::1]:6379", "localhost:6379"])
    def test_on_loopback_a_token_suffices(self, address: str) -> None:
        check_doors(address, TOKEN)

    @pytest.mark.parametrize("address", ["10.0.0.4:6379", "auto", "head.example:6379", "[2001:db8::1]:6379"])
    def test_across_machines_tls_is_needed_and_each_of_its_files(self, address: str, tmp_path: Path) -> None:
        tls = {name: str(tmp_path / name) for name in TLS_FILES}
        for path in tls.values():
            Path(path).touch()
        check_doors(address, {**TOKEN, "RAY_USE_TLS": "1", **tls})
        for environ in (TOKEN, {**TOKEN, **tls}, {**TOKEN, "RAY_USE_TLS": "0", **tls}):
            with pytest.raises(BadRequest, match="RAY_USE_TLS=1"):
                check_doors(address, environ)
        for name in TLS_FILES:
            with pytest.raises(BadRequest, match=name):
                check_doors(address, {**TOKEN, "RAY_USE_TLS": "1", **tls, name: str(tmp_path / "missing")})


CONFIG = ReplicaConfig(
    "smollm2-135m",
    ModelSettings(Path("/cache"), ("hub",)),
    LoadOptions("float32", adapter=Path("/lora"), kv_gib=0.5),
    MergeOptions(30.0, "fast"),
    num_replicas=3,
)


def test_a_replica_reads_its_configuration_from_json() -> None:
    fields = json.loads(json.dumps(CONFIG.to_json()))
    assert ReplicaConfig.from_json(fields) == CONFIG


def test_the_file_for_serve_deploy_names_a_function_that_takes_its_arguments() -> None:
    from ray.serve.schema import ServeDeploySchema

    written = ServeDeploySchema(**json.loads(write_config(CONFIG)))
    (application,) = written.applications
    assert application.import_path == "agent_runtime.cluster.replica:build_app"
    assert ReplicaConfig.from_json(application.args["fields"]) == CONFIG
    assert written.proxy_location == "Disabled"


def edit_of(path: str = "a.py", root: str = "", salt: str = "", text: str = "a = 1\n") -> ModelTask:
    request = ApplyRequest(original=text.encode(), edit="a = 2\n", path=path, root=root, salt=salt)
    return ModelTask(text, request, parse("a = 2\n", "lazy"), Unresolved("open_intent", "unclear", 0))


def chat_of(*texts: str, salt: str = "") -> ChatRequest:
    messages = tuple(
        ChatMessage(role, text) for role, text in zip(("system", "user", "assistant"), texts, strict=False)
    )
    return ChatRequest(prompt=messages, salt=salt)


class TestAffinity:
    def test_what_shares_kv_has_one_key(self) -> None:
        plain, session = RequestContext(), RequestContext(affinity="s1")
        assert make_affinity_key(edit_of(), plain) == make_affinity_key(edit_of(text="a = 3\n"), plain)
        assert make_affinity_key(edit_of("a.py"), session) == make_affinity_key(edit_of("b.py"), session)
        one, longer = chat_of("be brief", "hello"), chat_of("be brief", "hello", "hi")
        assert make_affinity_key(one, plain) == make_affinity_key(longer, plain)
        prompt = tuple(range(2000))
        keys = {make_affinity_key(ChatRequest(prompt=EncodedPrompt(ids)), plain) for ids in (prompt, (*prompt, 1))}
        assert len(keys) == 1

    def test_what_shares_none_has_another(self) -> None:
        plain = RequestContext()
        requests = [
            *(edit_of(path, root, salt) for path in ("a.py", "b.py") for root in ("", "/r") for salt in ("", "t")),
            *(edit_of("", text=text) for text in ("a = 1\n", "b = 1\n")),
            *(chat_of("be brief", text, salt=salt) for text in ("hello", "\ud800") for salt in ("", "t")),
        ]
        assert len({make_affinity_key(each, plain) for each in requests}) == len(requests)
        assert make_affinity_key(edit_of(), plain) != make_affinity_key(edit_of(), RequestContext(affinity="s"))


def test_a_model_s_text_is_the_same_after_it_was_sent(smollm2: RealModel) -> None:
    tokenizer, metadata = read_gguf_tokenizer(smollm2.gguf)
    bundle = metadata.to_bundle(tokenizer)
    sent = pickle.loads(pickle.dumps(bundle))
    assert sent.stop_ids == bundle.stop_ids
    assert sent.tokenizer.fingerprint == tokenizer.fingerprint
    text = "def f(x):  # <|im_end|> été\n    return x\n"
    assert sent.tokenizer.encode(text) == tokenizer.encode(text)
    assert sent.tokenizer.encode_template("<|im_start|>user") == tokenizer.encode_template("<|im_start|>user")
    messages = [{"role": "user", "content": "hello"}]
    assert sent.template.render(messages) == bundle.template.render(messages)


@pytest.mark.parametrize("fault", [TooLarge("too large"), Busy("busy"), EditRefused("no"), BadRequest("b", field="f")])
def test_an_error_is_the_same_after_it_was_sent(fault: HunkError) -> None:
    fault.usage = Usage(prompt=3)
    sent = pickle.loads(pickle.dumps(fault))
    assert (type(sent), str(sent), vars(sent)) == (type(fault), str(fault), vars(fault))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve", "--replicas", "2", "--cluster", "127.0.0.1:1"], "leave --replicas out"),
        (["serve", "--replicas", "2", "--model", "none"], "needs no replicas"),
        (["serve", "--replicas", "2", "--tensor-parallel", "2"], "is for a service without replicas"),
        (["serve", "--replicas", "0"], "Invalid value for '--replicas'"),
        (["serve", "--cluster", "10.0.0.4:6379"], "RAY_AUTH_MODE=token"),
        (["deploy", "--cluster", "10.0.0.4:6379"], "RAY_AUTH_MODE=token"),
        (["deploy"], "name the cluster"),
        (["deploy", "--model", "none"], "needs no replicas"),
    ],
)
def test_bad_usage_is_refused_with_what_to_do(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code
    assert message in (str(done.exception) + done.output).replace("\n", " ")


def test_deploy_writes_a_file_for_serve_deploy(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    done = CliRunner().invoke(app, ["deploy", "--model", "smollm2-135m", "--replicas", "4", "-o", str(file)])
    assert done.exit_code == 0, done.output
    fields = json.loads(file.read_text())["applications"][0]["args"]["fields"]
    assert (fields["model"], fields["num_replicas"]) == ("smollm2-135m", 4)
    assert file.stat().st_mode & 0o077 == 0, "it may hold a password"


@pytest.mark.parametrize("name", ["", "no/such/serve.yaml"])
def test_a_file_that_cannot_be_written_is_said_so(tmp_path: Path, name: str) -> None:
    done = CliRunner().invoke(app, ["deploy", "--model", "smollm2-135m", "-o", str(tmp_path / name)])
    assert isinstance(done.exception, BadRequest)
    assert "cannot be written" in str(done.exception)


def test_a_cluster_that_is_not_there_is_said_so_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    done = CliRunner().invoke(app, ["deploy", "--model", "smollm2-135m", "--cluster", address])
    assert isinstance(done.exception, ModelUnavailable)
    assert f"no Ray cluster answers at {address}" in str(done.exception)


def test_the_folder_of_a_service_that_is_gone_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    names = [f"hunk-ray-{gone.pid}-a", f"hunk-ray-{os.getpid()}-b", "hunk-ray-other", "mine"]
    for name in names:
        (tmp_path / name).mkdir()
    made = make_session_folder()
    assert {each.name for each in tmp_path.iterdir()} == {*names[1:], made.name}
