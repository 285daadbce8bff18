"""Starts a local Ray cluster or joins a running one, and deploys replicas there."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_runtime.errors import BadRequest, ModelUnavailable
from agent_runtime.process import count_cores

if TYPE_CHECKING:
    from ray.serve.handle import DeploymentHandle

    from agent_runtime.cluster.client import ReplicatedMerger
    from agent_runtime.cluster.config import ReplicaConfig

APP = "hunk"
"""The name of the Serve application, and of Ray's namespace."""

OBJECT_STORE_BYTES = 100 << 20
"""Memory for values that are too large for a message; a request's file is one."""

CONNECT_SECONDS = 5.0

TLS_FILES = ("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT")


def check_installed() -> None:
    """Raise ModelUnavailable where Ray is not installed."""
    if find_spec("ray") is None:
        raise ModelUnavailable("replicas need ray, which is not installed: `pip install 'hunk-apply[scale]'`")


def check_doors(address: str, environ: Mapping[str, str]) -> None:
    """Raise BadRequest unless Ray asks for a token, and encrypts what leaves this machine.

    Whoever reaches the ports of a Ray cluster can run code on it, by design (CVE-2023-48022).
    """
    if environ.get("RAY_AUTH_MODE") != "token":
        raise BadRequest(
            "whoever reaches a Ray cluster can run code on it: start every node and this command with "
            "RAY_AUTH_MODE=token and the same RAY_AUTH_TOKEN_PATH (docs/security.md)",
            field="RAY_AUTH_MODE",
        )
    if _is_loopback(address):
        return
    missing = [name for name in TLS_FILES if not Path(environ.get(name, "")).is_file()]
    if environ.get("RAY_USE_TLS") != "1" or missing:
        raise BadRequest(
            f"files and edits would cross the network to {address} in plain text: start every node and this command "
            f"with RAY_USE_TLS=1 and {', '.join(TLS_FILES)} (docs/security.md)",
            field=missing[0] if missing else "RAY_USE_TLS",
        )


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def open_local(config: ReplicaConfig) -> ReplicatedMerger:
    """Start a Ray cluster of this machine, which listens on loopback only, and replicas in it; wait until they answer.

    It ends with `close`. Raises ModelUnavailable if a replica does not start.
    """
    _set_local_variables()
    num_threads = config.num_threads or max(1, count_cores() // config.num_replicas)
    config = replace(config, loopback_only=True, num_threads=num_threads)
    folder = make_session_folder()

    def connect() -> DeploymentHandle[Any]:
        _init_ray(
            address="local",
            _node_ip_address="127.0.0.1",
            _temp_dir=str(folder),
            include_dashboard=False,
            num_cpus=count_cores(),
            object_store_memory=OBJECT_STORE_BYTES,
        )
        return _run_app(config)

    return _open(connect, config.merging.deadline_s, on_close=lambda: shutil.rmtree(folder, ignore_errors=True))


SESSION_PREFIX = "hunk-ray-"


def make_session_folder() -> Path:
    """Make the folder of a local cluster; its path is short, as that of a socket has at most 107 bytes.

    Folders whose service was killed or interrupted are removed: their names have its process id.
    """
    for old in Path(tempfile.gettempdir()).glob(f"{SESSION_PREFIX}*"):
        try:
            os.kill(int(old.name.split("-")[2]), 0)
        except ProcessLookupError:
            shutil.rmtree(old, ignore_errors=True)
        except (OSError, ValueError, IndexError):
            continue  # another user's
    return Path(tempfile.mkdtemp(prefix=f"{SESSION_PREFIX}{os.getpid()}-"))


@cache
def _set_local_variables() -> None:
    """Have Ray listen on loopback only, as it does on a Mac, and ask for a token, which keeps other users out."""
    assert "ray" not in sys.modules, "Ray reads these variables when it is imported"
    os.environ |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_MODE": "token"}
    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def open_deployed(address: str, deadline_s: float | None) -> ReplicatedMerger:
    """Join the cluster at `address` and return the replicas that `hunk deploy` started there.

    Raises ModelUnavailable if there are none.
    """

    def connect() -> DeploymentHandle[Any]:
        _check_reachable(address)
        _init_ray(address=address)
        from ray import serve
        from ray.serve.exceptions import RayServeException

        try:
            return serve.get_app_handle(APP)
        except RayServeException as error:
            raise ModelUnavailable(
                f"no replicas run in the cluster at {address}; start them with `hunk deploy`: {error}"
            ) from error

    return _open(connect, deadline_s)


def deploy(address: str, config: ReplicaConfig) -> None:
    """Start replicas in the cluster at `address`, or replace those that run there one by one.

    Returns when they answer. Raises ModelUnavailable if the cluster is not reached or a replica does not start.
    """
    _check_reachable(address)
    _init_ray(address=address)
    import ray

    try:
        _run_app(config)
    finally:
        ray.shutdown()


def write_config(config: ReplicaConfig) -> str:
    """Return a Serve config file that `serve deploy` takes: YAML, of which JSON is a part."""
    from agent_runtime.cluster.replica import build_app

    application = {
        "name": APP,
        "route_prefix": None,
        "import_path": f"{build_app.__module__}:{build_app.__name__}",
        "args": {"fields": config.to_json()},
    }
    return json.dumps({"proxy_location": "Disabled", "applications": [application]}, indent=2) + "\n"


def _check_reachable(address: str) -> None:
    """Raise ModelUnavailable where nobody listens: Ray itself would try for more than a minute."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal():
        return  # such as `auto`, which Ray resolves
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ModelUnavailable(
            f"no Ray cluster answers at {address}: {error}; `ray status` shows its address"
        ) from error


def _open(
    connect: Callable[[], DeploymentHandle[Any]], deadline_s: float | None, on_close: Callable[[], None] = lambda: None
) -> ReplicatedMerger:
    from agent_runtime.cluster.client import RayDriver, ReplicatedMerger

    driver = RayDriver(connect, on_close)
    try:
        return ReplicatedMerger(driver, deadline_s)
    except BaseException:
        driver.close()
        raise


def _init_ray(**options: Any) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    logging.getLogger("ray").setLevel(logging.ERROR)
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    with _keep_handler(signal.SIGTERM):
        try:
            ray.init(namespace=APP, log_to_driver=False, configure_logging=False, **options)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ModelUnavailable(f"Ray cannot be reached: {str(error).partition(chr(10))[0]}") from error


@contextmanager
def _keep_handler(number: int) -> Iterator[None]:
    """Put the handler of a signal back at the end: Ray's prints a stack at each SIGTERM, and only the main thread could
    set Python's anew.
    """
    sigaction, saved = ctypes.CDLL(None).sigaction, ctypes.create_string_buffer(512)
    sigaction(number, None, saved)
    try:
        yield
    finally:
        sigaction(number, saved, None)


def _run_app(config: ReplicaConfig) -> DeploymentHandle[Any]:
    from ray import serve
    from ray.serve.schema import LoggingConfig

    from agent_runtime.cluster.replica import build_app

    logging_config = LoggingConfig(log_level="WARNING")
    serve.start(proxy_location="Disabled", logging_config=logging_config)
    try:
        return serve.run(build_app(config.to_json()), name=APP, route_prefix=None, logging_config=logging_config)
    except RuntimeError as error:
        raise ModelUnavailable(f"the replicas do not start: {error}") from error
