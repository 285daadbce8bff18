"""A service to attack with a random model of two layers, the load on it, and races of two writers."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from agent_runtime.server.token_file import TokenFile, make_token
from benchmarks.harness import Row, say
from benchmarks.serve.service import Clients, Edit, Running, Seen, make_rule_edits, open_service, run_clients

POLITE, ATTACKER = "polite", "attacker"
"""The tenants."""

MAX_CONNECTIONS = 200
"""Of the service: attackers take all of them without more open files than most systems let a process have."""

DRAIN_S = 2.0


@dataclass(frozen=True, slots=True)
class Setting:
    """Where a service has its files, and the tokens of its tenants."""

    folder: Path
    tokens: dict[str, str]

    @property
    def root(self) -> Path:
        return self.folder / "root"

    @property
    def cache(self) -> Path:
        """What it keeps, its journals among it."""
        return self.folder / "cache"

    @contextmanager
    def open_service(
        self, *options: str | Path, root: Path | None = None, cache: Path | None = None
    ) -> Iterator[Running]:
        """A service of its own process; raises RuntimeError where it does not start, or end when it is asked to."""
        limits = ("--max-connections", str(MAX_CONNECTIONS), "--drain", str(DRAIN_S))
        environ = {"HUNK_CACHE": str(cache or self.cache), "HUNK_CONFIG": ""}
        model = self.folder / "model"
        options = ("--tokens", self.folder / "tokens.json", *limits, *options)
        with open_service(model, root or self.root, *options, environ=environ) as service:
            yield service

    @staticmethod
    def url(service: Running) -> str:
        return f"http://127.0.0.1:{service.port}"

    def client(self, service: Running) -> httpx.Client:
        headers = {"authorization": f"Bearer {self.tokens[POLITE]}"}
        return httpx.Client(base_url=self.url(service), headers=headers, timeout=30)


def make_setting(folder: Path) -> Setting:
    """Make all that a service needs in an empty folder."""
    for name in ("root", "cache", "model"):
        (folder / name).mkdir()
    file, tokens = TokenFile(folder / "tokens.json"), {}
    for tenant in (POLITE, ATTACKER):
        token, tokens[tenant] = make_token(tenant, tenant, frozenset(("admin",)), datetime.now(UTC))
        file.change(lambda known, token=token: known.add_token(token))  # type: ignore[misc]
    _make_model(folder / "model")
    return Setting(folder, tokens)


def _make_model(folder: Path) -> None:
    """Make a model that no request of this benchmark asks; the service wants one to start."""
    import torch  # takes a second to import

    from agent_runtime.models.store import write_tokenizer_config
    from engine.families import parse_config
    from engine.weights import Parameters
    from engine.weights.checkpoint import save_folder

    end = "<|im_end|>"
    alphabet = {character: number for number, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(alphabet, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(end, special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    raw = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 32, "intermediate_size": 64}
    raw |= {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True}
    raw |= {"vocab_size": len(alphabet) + 1, "max_position_embeddings": 32_768, "rope_theta": 10000.0}
    raw |= {"rms_norm_eps": 1e-6, "hidden_act": "silu"}
    parameters = Parameters(parse_config(raw), torch.float32)
    random = torch.Generator().manual_seed(0)
    for _, tensor in sorted(parameters.slots().items()):
        tensor.copy_(torch.empty(tensor.shape).normal_(1.0, 0.1, generator=random))
    save_folder(parameters, folder)
    template = "{% for message in messages %}{{ message['content'] }}" + end + "{% endfor %}"
    write_tokenizer_config(folder, chat_template=template, eos_token=end, bos_token="")


PROBE_PAUSE_MS = 50.0
POLITE_PAUSE_MS = 20.0

ATTACK_STARTS_S = 2.0
"""From the start of the attackers' processes until all of them have begun."""

REFUSALS = frozenset({"422", "429", "503"})
"""Of a service that cannot write, has too much to do, or ends."""


def measure_loads(setting: Setting, service: Running, kinds: Sequence[str], seconds: float, seed: int) -> list[Row]:
    """Under each attack and under all of them at once, with nobody else before each; idle is the first row."""
    edits = make_rule_edits(20, seed)
    phases = [(kind, [kind]) for kind in kinds] + ([("all at once", list(kinds))] if len(kinds) > 1 else [])
    idle: list[dict[str, Seen]] = []
    rows = []
    for name, attacks in phases:
        say(f"{name} ...")
        idle.append(_load(setting, service, edits, seconds / 2))
        with _attack(setting, service, attacks, ATTACK_STARTS_S + seconds) as counts:
            seen = _load(setting, service, edits, seconds)
        rows.append({"what": name, **_make_row(seen["polite"], seen["probe"]), "attackers": dict(counts)})
    polite, probe = (_sum_seen([each[name] for each in idle]) for name in ("polite", "probe"))
    return [{"what": "idle, before each attack", **_make_row(polite, probe)}, *rows]


def stop_under_attack(setting: Setting, service: Running, kinds: Sequence[str]) -> Row:
    """SIGTERM while all attack: how long the service takes to end. The caller finds it gone."""
    with _attack(setting, service, kinds, ATTACK_STARTS_S + DRAIN_S + 15) as counts:
        started = time.monotonic()
        os.kill(service.pid, signal.SIGTERM)
        while _is_there(service.pid) and time.monotonic() - started < 30:
            time.sleep(0.05)
        seconds = time.monotonic() - started
    return {"what": "SIGTERM under all", "ended_s": round(seconds, 1), "attackers": dict(counts)}


def _load(setting: Setting, service: Running, edits: Sequence[Edit], seconds: float) -> dict[str, Seen]:
    clients = [
        Clients("polite", edits, 1, token=setting.tokens[POLITE], pause_ms=POLITE_PAUSE_MS),
        Clients("probe", [], 1, pause_ms=PROBE_PAUSE_MS),
    ]
    return run_clients(service, clients, seconds, setting.folder)


def _sum_seen(seen: Sequence[Seen]) -> Seen:
    """Return the sum of what was seen."""
    return Seen(
        tuple(sorted(each for one in seen for each in one.latencies_ms)),
        sum((one.statuses for one in seen), Counter()),
        sum((one.faults for one in seen), Counter()),
        sum(one.wrong for one in seen),
        sum(one.seconds for one in seen),
    )


def _make_row(polite: Seen, probe: Seen) -> Row:
    return {
        "healthz_longest_ms": round(max(probe.latencies_ms, default=float("inf")), 1),
        "polite_p50_ms": round(polite.quantile_ms(0.5), 2),
        "polite_p99_ms": round(polite.quantile_ms(0.99), 2),
        "requests": len(polite.latencies_ms) + len(probe.latencies_ms),
        "statuses": dict(polite.statuses + probe.statuses),
        "lost_requests": count_lost(polite.statuses) + count_lost(probe.statuses) + _count_faults(polite, probe),
    }


def count_lost(statuses: Counter[str]) -> int:
    """Answers that are neither what was asked for nor a clear refusal; the clients send nothing that is wrong."""
    return sum(count for status, count in statuses.items() if status != "200" and status not in REFUSALS)


def _count_faults(*seen: Seen) -> int:
    return sum(sum(each.faults.values()) + each.wrong for each in seen)


@contextmanager
def _attack(setting: Setting, service: Running, kinds: Iterable[str], seconds: float) -> Any:
    """All kinds of attackers at once; gives what they have counted, when they have ended."""
    counts: Counter[str] = Counter()
    command = [sys.executable, "-m", "benchmarks.faults.attackers", str(service.port)]
    options = ["--seconds", str(seconds), "--token", setting.tokens[ATTACKER]]
    processes = [subprocess.Popen([*command, kind, *options], stdout=subprocess.PIPE, text=True) for kind in kinds]
    time.sleep(ATTACK_STARTS_S if processes else 0)
    try:
        yield counts
    finally:
        for process in processes:
            printed = process.communicate()[0]
            counts.update(json.loads(printed or "{}"))


def _is_there(pid: int) -> bool:
    """Whether a child has not ended yet; it is not waited for, which is its starter's."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


START = "a = 0\nb = 0\n"
WHOLE = re.compile(r"a = (\d+)\nb = (\d+)\n")

READ_SECONDS = 0.002
"""How often the file is read meanwhile, to see whether it is ever torn."""

COMMAND_SHARE = 40
"""A process for each write takes so many times longer than a request: so many times fewer are made next to these."""


def run_races(setting: Setting, num_writes: int) -> list[Row]:
    """Run all combinations of writers, with so many acknowledged updates each."""
    root, sub = setting.root, setting.root / "sub"
    sub.mkdir()
    file = sub / "raced.txt"
    journals, others = str(setting.cache / "journals"), str(setting.folder / "cache-2" / "journals")
    here = ("root", str(root), journals)
    pairs: list[tuple[str, Sequence[str], Sequence[str]]] = [
        ("one root, two cache folders", here, ("root", str(root), others)),
        ("a root and a folder in it", here, ("root", str(sub), journals)),
        ("a root and a file", here, ("file",)),
        ("with a journal and without", here, ("root", str(root), "")),
    ]
    rows = [run_race(name, file, first, second, num_writes) for name, first, second in pairs]
    with ExitStack() as services:
        running = services.enter_context(setting.open_service("--no-watch"))
        other = services.enter_context(setting.open_service("--no-watch", cache=setting.folder / "cache-2"))
        with setting.client(running) as client:
            client.post("/workspaces", json={"root": str(sub), "name": "nested"}).raise_for_status()
        token = setting.tokens[POLITE]
        default = ("service", setting.url(running), token, "default", "sub/raced.txt")
        nested = ("service", setting.url(running), token, "nested", "raced.txt")
        elsewhere = ("service", setting.url(other), token, "default", "sub/raced.txt")
        rows.append(run_race("a service, nested workspaces", file, default, nested, num_writes))
        rows.append(run_race("two services, two cache folders", file, default, elsewhere, num_writes))
        rows.append(run_race("a service and `hunk apply`", file, default, ("command",), num_writes, COMMAND_SHARE))
    return rows


def run_race(
    name: str, file: Path, first: Sequence[str], second: Sequence[str], num_writes: int, share: int = 1
) -> Row:
    """Run two writers until each has half of the updates acknowledged, the second that by `share`."""
    say(f"{name} ...")
    file.write_text(START)
    started, torn = time.monotonic(), 0
    command = [sys.executable, "-m", "benchmarks.faults.writers"]
    count = max(1, num_writes // 2)
    writers = [
        subprocess.Popen([*command, who, str(file), str(most), *kind], stdout=subprocess.PIPE, text=True)
        for who, most, kind in (("a", count, first), ("b", max(1, count // share), second))
    ]
    while any(writer.poll() is None for writer in writers):
        torn += not WHOLE.fullmatch(file.read_text())
        time.sleep(READ_SECONDS)
    seconds = time.monotonic() - started
    seen = [json.loads(writer.communicate()[0]) for writer in writers]
    found = WHOLE.fullmatch(file.read_text())
    done = [each["done"] for each in seen]
    return {
        "what": name,
        "writes": sum(done),
        "refused": sum(each["refused"] for each in seen),
        "lost_updates": sum(done) - sum(map(int, found.groups())) if found else sum(done),
        "torn": torn + (found is None) + len(list(file.parent.glob(".*.hunk"))),
        "seconds": round(seconds, 1),
    }
