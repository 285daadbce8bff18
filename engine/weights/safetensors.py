"""Reads and writes model folders: `config.json` beside one or several safetensors files."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from engine.config import ModelConfig
from engine.errors import WeightsError
from engine.weights.parameters import Parameters


def read_config(folder: Path) -> ModelConfig:
    """Return the folder's config; raises WeightsError if it is missing, not JSON or unsupported."""
    return ModelConfig.from_hf(read_json(folder / "config.json"))


def read_json(path: Path) -> dict[str, Any]:
    """Return the file's JSON object; raises WeightsError if there is none."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise WeightsError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(raw, dict):
        raise WeightsError(f"{path} is not a JSON object")
    return raw


def read_tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor of the folder's safetensors files, memory-mapped; raises WeightsError."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise WeightsError(f"{folder} holds no .safetensors file")
    for path in files:
        for name, tensor in read_file_tensors(path):
            if not name.endswith(".rotary_emb.inv_freq"):  # old Llama checkpoints store the table
                yield name, tensor


def read_file_tensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor of one safetensors file, memory-mapped; raises WeightsError."""
    with _translate_errors(path):
        with safe_open(path, framework="pt") as opened:
            names = list(opened.keys())
        for name in names:
            # Opened anew for each tensor: pages of one mapping would all count as ours until the last is read.
            with safe_open(path, framework="pt") as opened:
                yield name, opened.get_tensor(name)


@contextmanager
def _translate_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except SafetensorError as error:
        raise WeightsError(f"{path} is damaged: {error}") from error
    except OSError as error:
        raise WeightsError(f"cannot read {path}: {error.strerror or error}") from error


def save_folder(parameters: Parameters, folder: Path) -> None:
    """Write `parameters` as a folder that this module and other programs can read; raises OSError."""
    raw = parameters.config.to_hf() | {"torch_dtype": str(parameters.dtype).removeprefix("torch.")}
    config = json.dumps(raw, indent=2)
    (folder / "config.json").write_text(config + "\n", encoding="utf-8")
    try:
        save_file(parameters.slots(), folder / "model.safetensors", metadata={"format": "pt"})
    except SafetensorError as error:  # its way of saying that the disk is full
        raise OSError(errno.EIO, f"cannot write the weights: {error}", str(folder)) from error
