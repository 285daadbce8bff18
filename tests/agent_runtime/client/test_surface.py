"""The asynchronous client has the methods of the blocking one, with the same parameters and the same answers."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import pytest

import agent_runtime
from agent_runtime import client as sdk
from agent_runtime.client import (
    AsyncClient,
    AsyncItems,
    AsyncSession,
    AsyncStream,
    Client,
    Items,
    Session,
    Stream,
)
from agent_runtime.client.workspaces import AsyncClientWorkspaces, ClientWorkspaces

PAIRS = [
    (Client, AsyncClient),
    (ClientWorkspaces, AsyncClientWorkspaces),
    (Session, AsyncSession),
    (Stream, AsyncStream),
    (Items, AsyncItems),
]


def public(cls: type) -> dict[str, Any]:
    """Public methods and properties; `close` is `aclose` where it must be awaited."""
    found = {name: member for name, member in inspect.getmembers(cls) if not name.startswith("_")}
    return {"close" if name == "aclose" else name: member for name, member in found.items()}


@pytest.mark.parametrize(("blocking", "asynchronous"), PAIRS)
def test_both_clients_have_one_surface(blocking: type, asynchronous: type) -> None:
    ours, theirs = public(blocking), public(asynchronous)
    assert ours.keys() == theirs.keys()
    for name, method in ours.items():
        if not callable(method):
            assert type(method) is type(theirs[name]), name
            continue
        assert _parameters(method) == _parameters(theirs[name]), name
        assert _answer(method) == _answer(theirs[name]).replace("Async", ""), name


@pytest.mark.parametrize(("blocking", "asynchronous"), PAIRS)
def test_both_clients_are_made_alike(blocking: type, asynchronous: type) -> None:
    ours, theirs = (inspect.signature(cls).parameters for cls in (blocking, asynchronous))
    assert [*ours] == [*theirs]
    assert [one.default for one in ours.values()] == [one.default for one in theirs.values()]


def _parameters(method: Any) -> list[tuple[str, Any, Any, str]]:
    return [
        (one.name, one.kind, one.default, str(one.annotation)) for one in inspect.signature(method).parameters.values()
    ]


def _answer(method: Any) -> str:
    return str(inspect.signature(method).return_annotation)


def test_the_clients_are_imported_without_torch_and_what_else_only_a_service_needs() -> None:
    heavy = ("torch", "numpy", "tokenizers", "fastapi", "uvicorn", "pydantic", "tree_sitter")
    program = (
        f"from agent_runtime import Client, AsyncClient; import sys; print([m for m in {heavy} if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_every_public_name_can_be_had_from_the_package() -> None:
    for name in agent_runtime.__all__:
        assert getattr(agent_runtime, name) is not None
        assert name in dir(agent_runtime)
    for name in sdk.__all__:
        assert getattr(sdk, name) is not None
    with pytest.raises(AttributeError, match="nosuch"):
        _ = agent_runtime.nosuch
