"""A polite tenant and a probe of `/healthz` beside attackers: who waits how long, and whose request is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import contextmanager
from typing import Any

from benchmarks.faults.setting import ATTACKER, DRAIN_S, POLITE, Setting
from benchmarks.serve.edits import Edit, edits_by_rule
from benchmarks.serve.load import Clients, Seen, run
from benchmarks.serve.service import Running

Row = dict[str, Any]

PROBE_PAUSE_MS = 50.0
POLITE_PAUSE_MS = 20.0

ATTACK_STARTS_S = 2.0
"""From the start of the attackers' processes until all of them have begun."""

REFUSALS = frozenset({"422", "429", "503"})
"""Of a service that cannot write, has too much to do, or ends."""


def loads(setting: Setting, service: Running, kinds: Sequence[str], seconds: float, seed: int) -> list[Row]:
    """Under each attack and under all of them at once, with nobody else before each; idle is the first row."""
    edits = edits_by_rule(20, seed)
    phases = [(kind, [kind]) for kind in kinds] + ([("all at once", list(kinds))] if len(kinds) > 1 else [])
    idle: list[dict[str, Seen]] = []
    rows = []
    for name, attacks in phases:
        print(f"{name} ...", file=sys.stderr, flush=True)
        idle.append(_load(setting, service, edits, seconds / 2))
        with _attacked(setting, service, attacks, ATTACK_STARTS_S + seconds) as counts:
            seen = _load(setting, service, edits, seconds)
        rows.append({"what": name, **_row(seen["polite"], seen["probe"]), "attackers": dict(counts)})
    polite, probe = (_together([each[name] for each in idle]) for name in ("polite", "probe"))
    return [{"what": "idle, before each attack", **_row(polite, probe)}, *rows]


def ended_under_attack(setting: Setting, service: Running, kinds: Sequence[str]) -> Row:
    """SIGTERM while all attack: how long the service takes to end. The caller finds it gone."""
    with _attacked(setting, service, kinds, ATTACK_STARTS_S + DRAIN_S + 15) as counts:
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
    return run(service, clients, seconds, setting.folder)


def _together(seen: Sequence[Seen]) -> Seen:
    """All of it as if it were one."""
    return Seen(
        tuple(sorted(each for one in seen for each in one.latencies_ms)),
        sum((one.statuses for one in seen), Counter()),
        sum((one.faults for one in seen), Counter()),
        sum(one.wrong for one in seen),
        sum(one.seconds for one in seen),
    )


def _row(polite: Seen, probe: Seen) -> Row:
    return {
        "healthz_longest_ms": round(max(probe.latencies_ms, default=float("inf")), 1),
        "polite_p50_ms": round(polite.quantile_ms(0.5), 2),
        "polite_p99_ms": round(polite.quantile_ms(0.99), 2),
        "requests": len(polite.latencies_ms) + len(probe.latencies_ms),
        "statuses": dict(polite.statuses + probe.statuses),
        "lost_requests": num_lost(polite.statuses) + num_lost(probe.statuses) + _num_faults(polite, probe),
    }


def num_lost(statuses: Counter[str]) -> int:
    """Answers that are neither what was asked for nor a clear refusal; the clients send nothing that is wrong."""
    return sum(count for status, count in statuses.items() if status != "200" and status not in REFUSALS)


def _num_faults(*seen: Seen) -> int:
    return sum(sum(each.faults.values()) + each.wrong for each in seen)


@contextmanager
def _attacked(setting: Setting, service: Running, kinds: Iterable[str], seconds: float) -> Any:
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
