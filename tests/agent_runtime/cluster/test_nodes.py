"""A cluster of two machines, here network namespaces with TLS: one is cut off for a while, and one dies."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from tests.agent_runtime.cluster.test_replicas import HUNK, LONG, Service, serve
from tests.certificates import write_certificate

RAY = Path(sys.executable).with_name("ray")
NAMESPACE, OUTSIDE, INSIDE, PORT = "hunk-node", "10.212.0.1", "10.212.0.2", 6390
CUT_SECONDS = 10.0

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        bool(os.geteuid()) or not shutil.which("ip"), reason="needs root and ip, for a network namespace"
    ),
]


@contextmanager
def open_network() -> Iterator[None]:
    """Connect a network namespace with this one."""
    inside = f"ip netns exec {NAMESPACE}"
    for command in (
        f"ip netns add {NAMESPACE}",
        f"ip link add hunk-n0 type veth peer name hunk-n1 netns {NAMESPACE}",
        f"ip addr add {OUTSIDE}/24 dev hunk-n0",
        "ip link set hunk-n0 up",
        f"{inside} ip addr add {INSIDE}/24 dev hunk-n1",
        f"{inside} ip link set hunk-n1 up",
        f"{inside} ip link set lo up",
    ):
        subprocess.run(command.split(), check=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "netns", "del", NAMESPACE], check=True)


@contextmanager
def start_node(environ: Mapping[str, str], *command: str | Path) -> Iterator[psutil.Process]:
    """Run a node of Ray until the end of the block; all its processes are killed then."""
    options = ["--num-cpus=1", "--object-store-memory=100000000", "--disable-usage-stats", "--block"]
    with subprocess.Popen([*command, *options], env=environ, stdout=subprocess.DEVNULL) as started:
        node = psutil.Process(started.pid)
        try:
            yield node
        finally:
            kill_node(node)


def kill_node(node: psutil.Process) -> None:
    """Kill all processes of a node, as when its machine loses power."""
    if node.is_running():
        for process in [node, *node.children(recursive=True)]:
            process.kill()


class Cluster:
    """Two nodes with a replica each, and a service on the first one."""

    def __init__(self, service: Service, second: psutil.Process) -> None:
        self.service, self.second = service, second
        self.threads = ThreadPoolExecutor(8)

    def edit_at_second(self, name: str) -> Future[httpx.Response]:
        """Begin a long edit that the replica of the second node works on; `name` names its file."""
        for number in range(50):
            body = {**LONG, "path": f"{name}{number}.py", "max_tokens": 200}
            answer = self.threads.submit(self.service.client.post, "/apply", json=body)
            if self._find_replica() in self.second.children(recursive=True):
                return answer
            answer.result()
        raise AssertionError("no edit goes to the second node")

    def _find_replica(self) -> psutil.Process:
        replicas = [
            each for each in psutil.process_iter(["cmdline"]) if "ServeReplica" in " ".join(each.info["cmdline"] or [])
        ]
        for each in replicas:
            each.cpu_percent()
        time.sleep(0.3)
        return max(replicas, key=lambda each: each.cpu_percent())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    certificate, key = write_certificate(folder, "localhost", "127.0.0.1", OUTSIDE, INSIDE)
    token = folder / "token"
    token.write_text(secrets.token_hex(32))
    token.chmod(0o600)
    environ = {
        **os.environ,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_USE_TLS": "1",
        "RAY_TLS_SERVER_CERT": str(certificate),
        "RAY_TLS_SERVER_KEY": str(key),
        "RAY_TLS_CA_CERT": str(certificate),
    }
    address = f"{OUTSIDE}:{PORT}"
    model = ["--model", "smollm2-135m", "--cluster", address]
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        short = stack.enter_context(tempfile.TemporaryDirectory())  # the path of a socket has at most 107 bytes
        stack.enter_context(open_network())
        head = [RAY, "start", "--head", f"--node-ip-address={OUTSIDE}", f"--port={PORT}"]
        stack.enter_context(start_node(environ, *head, "--include-dashboard=false", f"--temp-dir={short}"))
        wait_for_port()
        inside = ["ip", "netns", "exec", NAMESPACE, RAY, "start", f"--address={address}"]
        second = stack.enter_context(start_node(environ, *inside, f"--node-ip-address={INSIDE}"))
        subprocess.run([HUNK, "deploy", *model, "--replicas", "2"], env=environ, check=True, timeout=300)
        for name, value in environ.items():
            patch.setenv(name, value)
        service = stack.enter_context(serve(folder, "--cluster", address))
        service.wait_until_ready()
        yield Cluster(service, second)


def wait_for_port() -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            return httpx.get(f"http://{OUTSIDE}:{PORT}").close()
        except httpx.ConnectError:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        except httpx.TransportError:
            return None


class TestWithTwoNodes:
    def test_the_network_is_cut_for_ten_seconds(self, cluster: Cluster) -> None:
        answer = cluster.edit_at_second("cut")
        subprocess.run(["ip", "link", "set", "hunk-n0", "down"], check=True)
        others = [cluster.threads.submit(cluster.service.ask, f"Say {number}") for number in range(6)]
        time.sleep(CUT_SECONDS)
        subprocess.run(["ip", "link", "set", "hunk-n0", "up"], check=True)
        assert answer.result(60).json()["usage"]["completion"] == 200
        assert [len(each.result(60)["choices"]) for each in others] == [1] * 6
        cluster.service.wait_for_replicas()

    def test_a_node_dies(self, cluster: Cluster) -> None:
        before = cluster.service.read_counter("hunk_replica_retries_total")[""]
        answer = cluster.edit_at_second("die")
        kill_node(cluster.second)
        assert answer.result(60).json()["usage"]["completion"] == 200
        assert cluster.service.read_counter("hunk_replica_retries_total")[""] == before + 1
        assert all(cluster.service.ask(f"Say {number}") for number in range(6)), "the other one serves all"
