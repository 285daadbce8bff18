"""A device that is not there is refused with what to do."""

from __future__ import annotations

import pytest
import torch

from engine import device as devices
from engine.device import resolve_device, use_device
from engine.errors import DeviceError


def test_the_cpu_is_always_there() -> None:
    assert resolve_device("cpu") == torch.device("cpu")
    with use_device(torch.device("cpu")):
        pass


@pytest.mark.parametrize("name", ["", "gpu", "cuda:", "cuda:x", "CUDA", "mps", "cuda:-1"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(DeviceError, match="none of cpu, cuda and cuda:N"):
        resolve_device(name)


def test_a_card_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(DeviceError, match=r"'cuda'.*built without CUDA.*leave the device out to run on the CPU"):
        resolve_device("cuda")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    with pytest.raises(DeviceError, match=r"finds no NVIDIA card.*nvidia-smi"):
        resolve_device("cuda:1")


def test_what_a_card_needs_beside_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert resolve_device("cuda") == torch.device("cuda", 0)
    assert resolve_device("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(DeviceError, match="there are 2 cards, the last is cuda:1"):
        resolve_device("cuda:2")
    monkeypatch.setattr(devices, "find_spec", lambda name: None)
    with pytest.raises(DeviceError, match=r"pip install 'hunk\[gpu\]'"):
        resolve_device("cuda")
