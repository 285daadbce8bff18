"""Loads the weights of a decoder, and merges a LoRA adapter.

A model folder holds `config.json` beside one or several safetensors files. An adapter folder is in PEFT's format:
`adapter_config.json` and `adapter_model.safetensors`. For each adapted projection W [out, in] the latter has `lora_A`
[r, in] and `lora_B` [out, r]; the merged one is W + scale * B @ A (Hu et al. 2021, arXiv 2106.09685).
"""

from __future__ import annotations

import errno
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from engine.config import ModelConfig
from engine.errors import WeightsError
from engine.families import dump_config, parse_config
from engine.weights.gguf import GGUFModel
from engine.weights.parameters import Parameters


def read_config(folder: Path) -> ModelConfig:
    """Return the folder's config; raises WeightsError if it is missing, not JSON or unsupported."""
    return parse_config(read_json(folder / "config.json"))


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


class TensorFolder:
    """The tensors of a folder's safetensors files, memory-mapped. The methods raise WeightsError for a damaged file."""

    def __init__(self, folder: Path) -> None:
        """Read the headers; raises WeightsError if there is none, or if two have a tensor of one name."""
        self._files: dict[str, Path] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            raise WeightsError(f"{folder} holds no .safetensors file")
        for path in files:
            with _open_tensors(path) as opened:
                for name in opened.keys():  # noqa: SIM118  # it is no mapping
                    if name.endswith(".rotary_emb.inv_freq"):  # old Llama checkpoints store the table
                        continue
                    if name in self._files:
                        raise WeightsError(f"{path} and {self._files[name].name} both hold {name!r}")
                    self._files[name] = path
                    self._shapes[name] = tuple(opened.get_slice(name).get_shape())

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the tensors' shapes by their names."""
        return self._shapes

    def read(self, name: str) -> Tensor:
        """Return one of the tensors."""
        # Opened anew for each tensor: pages of one mapping would all count as ours until the last is read.
        with _open_tensors(self._files[name]) as opened:
            tensor: Tensor = opened.get_tensor(name)
        return tensor


def read_file_tensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor of one safetensors file, memory-mapped; raises WeightsError."""
    with _open_tensors(path) as opened:
        for name in opened.keys():  # noqa: SIM118  # it is no mapping
            yield name, opened.get_tensor(name)


@contextmanager
def _open_tensors(path: Path) -> Iterator[Any]:
    with _translate_errors(path), safe_open(path, framework="pt") as opened:
        yield opened


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
    raw = dump_config(parameters.config) | {"torch_dtype": str(parameters.dtype).removeprefix("torch.")}
    config = json.dumps(raw, indent=2)
    (folder / "config.json").write_text(config + "\n", encoding="utf-8")
    try:
        save_file(parameters.slots(), folder / "model.safetensors", metadata={"format": "pt"})
    except SafetensorError as error:  # its way of saying that the disk is full
        raise OSError(errno.EIO, f"cannot write the weights: {error}", str(folder)) from error


TENSOR_NAME = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<part>[AB])\.weight")

READ_HERE = {"alpha_pattern", "bias", "init_lora_weights", "lora_alpha", "peft_type", "r", "rank_pattern", "use_rslora"}
OF_TRAINING = {
    *("corda_config", "ensure_weight_tying", "eva_config", "exclude_modules", "layers_pattern", "layers_to_transform"),
    *("loftq_config", "lora_dropout", "lora_ga_config", "megatron_config", "megatron_core", "qalora_group_size"),
    *("runtime_config", "target_modules"),
}
OF_THE_FILE = {"auto_mapping", "base_model_name_or_path", "inference_mode", "peft_version", "revision", "task_type"}
HARMLESS = READ_HERE | OF_TRAINING | OF_THE_FILE
"""Settings of `adapter_config.json` that may be set. Any other one might change the result."""

HARMLESS_INITS = (True, False, None, "gaussian", "eva", "orthogonal")
"""Initialisations that leave the base model as it is; others (PiSSA, OLoRA, ...) train beside a base that they have
changed."""


@dataclass(frozen=True, slots=True)
class LowRankUpdate:
    """The update of one projection by an adapter: `scale` * `up` @ `down`."""

    down: Tensor  # [rank, in_features]
    up: Tensor  # [out_features, rank]
    scale: float

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the projection, [out_features, in_features]."""
        return self.up.shape[0], self.down.shape[1]

    def merge(self, weight: Tensor) -> Tensor:
        """Return `weight` with the update, in float32 whatever its dtype."""
        update = self.up.to(weight.device, torch.float32) @ self.down.to(weight.device, torch.float32)
        return weight.to(torch.float32) + self.scale * update


class LoraAdapter:
    """The updates of one adapter by the names of the tensors that they change."""

    def __init__(self, folder: Path) -> None:
        """Read a PEFT folder; raises WeightsError if it is damaged or uses more than plain LoRA."""
        self.folder = folder
        raw = read_json(folder / "adapter_config.json")
        _refuse_unsupported(raw)
        pairs = _read_pairs(folder / "adapter_model.safetensors")
        try:
            self.updates = dict(_build_updates(raw, pairs))
        except KeyError as error:
            raise WeightsError(f"{folder}/adapter_config.json has no {error.args[0]!r}") from None
        except (ValueError, TypeError, AttributeError, ArithmeticError, re.error) as error:
            raise WeightsError(f"{folder}/adapter_config.json is damaged: {error}") from error

    def check_fits(self, slots: Mapping[str, Tensor]) -> None:
        """Raise WeightsError if the adapter changes a tensor that the model does not have, or has in another shape."""
        for name, update in self.updates.items():
            slot = slots.get(name)
            if slot is None or slot.ndim != 2 or name == "model.embed_tokens.weight":
                raise WeightsError(f"the adapter {self.folder} changes {name!r}, which is no projection of this model")
            if slot.shape != update.shape:
                raise WeightsError(
                    f"the adapter {self.folder} has {name!r} as {update.shape}; the model has {tuple(slot.shape)}: "
                    "was it trained on another model?"
                )

    def merge(self, name: str, tensor: Tensor) -> Tensor:
        """Return the tensor of this name with its update, in float32; one that the adapter leaves alone as it is."""
        update = self.updates.get(name)
        return tensor if update is None else update.merge(tensor)


def _refuse_unsupported(raw: Mapping[str, Any]) -> None:
    if raw.get("peft_type") != "LORA":
        raise WeightsError(f"the adapter is of type {raw.get('peft_type')!r}; only LORA is supported")
    for key, value in raw.items():
        if value and key not in HARMLESS:
            raise WeightsError(f"an adapter with {key} is not supported; only plain LoRA is")
    if raw.get("bias", "none") != "none":
        raise WeightsError(f"an adapter with bias {raw['bias']!r} is not supported; only 'none' is")
    if raw.get("init_lora_weights") not in HARMLESS_INITS:
        raise WeightsError(
            f"an adapter begun by {raw['init_lora_weights']!r} belongs to a changed model; convert it to plain LoRA"
        )


def _read_pairs(path: Path) -> dict[str, dict[str, Tensor]]:
    """Return the tensors by module and part (A, B)."""
    pairs: dict[str, dict[str, Tensor]] = {}
    for name, tensor in read_file_tensors(path):
        match = TENSOR_NAME.fullmatch(name)
        if match is None or tensor.ndim != 2:
            raise WeightsError(f"{path} holds {name!r}, which is no matrix of a plain LoRA adapter")
        pairs.setdefault(match["module"], {})[match["part"]] = tensor
    if not pairs:
        raise WeightsError(f"{path} holds no tensors")
    return pairs


def _build_updates(
    raw: Mapping[str, Any], pairs: Mapping[str, Mapping[str, Tensor]]
) -> Iterator[tuple[str, LowRankUpdate]]:
    for module, parts in pairs.items():
        if len(parts) != 2:
            raise WeightsError(f"the adapter has only lora_{min(parts)} for {module!r}")
        rank = int(_read_setting(raw, "r", "rank_pattern", module))
        if rank < 1 or not parts["A"].shape[0] == parts["B"].shape[1] == rank:
            raise WeightsError(
                f"the adapter's rank for {module!r} is {rank}; its matrices are {tuple(parts['B'].shape)} and "
                f"{tuple(parts['A'].shape)}"
            )
        alpha = float(_read_setting(raw, "lora_alpha", "alpha_pattern", module))
        scale = alpha / (math.sqrt(rank) if raw.get("use_rslora") else rank)  # Kalajdzievski 2023, arXiv 2312.03732
        if not math.isfinite(scale):
            raise WeightsError(f"the adapter's lora_alpha for {module!r} is {alpha}")
        yield f"{module}.weight", LowRankUpdate(parts["A"], parts["B"], scale)


def _read_setting(raw: Mapping[str, Any], key: str, pattern_key: str, module: str) -> Any:
    """Return the value of the first pattern that matches the module's name or its end, else the general one."""
    for pattern, value in (raw.get(pattern_key) or {}).items():
        if re.fullmatch(rf"(.*\.)?({pattern})", module):
            return value
    return raw[key]


def load(
    source: GGUFModel | Path,
    dtype: torch.dtype,
    adapter: LoraAdapter | None = None,
    device: torch.device | str = "cpu",
) -> Parameters:
    """Return the model's parameters of `dtype` on `device`; each layer is read when it is asked for.

    `source` is an open GGUF file, or a folder with `config.json` and safetensors. The adapter is merged in float32,
    before the one rounding to `dtype`. Raises WeightsError, also when a layer is read.
    """
    config, read = open_tensors(source, dtype, adapter, device)
    return Parameters(config, dtype, device, read)


def open_tensors(
    source: GGUFModel | Path,
    dtype: torch.dtype,
    adapter: LoraAdapter | None = None,
    device: torch.device | str = "cpu",
) -> tuple[ModelConfig, Callable[[str], Tensor]]:
    """Check a model's tensors as `load` does; return its config, and what reads a tensor by its name."""
    config = source.config if isinstance(source, GGUFModel) else read_config(source)
    slots = Parameters(config, dtype, "meta").slots()
    if adapter is not None:
        adapter.check_fits(slots)
    tensors = source if isinstance(source, GGUFModel) else TensorFolder(source)
    _check_shapes(tensors.shapes(), slots, config)
    read = partial(source.read, device=device) if isinstance(source, GGUFModel) else tensors.read
    return config, read if adapter is None else lambda name: adapter.merge(name, read(name))


def _check_shapes(shapes: Mapping[str, tuple[int, ...]], slots: Mapping[str, Tensor], config: ModelConfig) -> None:
    """Raise WeightsError for an unknown, missing or misshapen tensor."""
    for name, shape in shapes.items():
        slot = slots.get(name)
        if slot is None:
            if name == "lm_head.weight" and config.tied_embeddings:
                continue  # some checkpoints of tied models carry the embedding twice
            raise WeightsError(f"the model has a tensor {name!r} that its architecture does not use")
        if tuple(slot.shape) != shape:
            raise WeightsError(f"tensor {name!r} is {shape}; expected {tuple(slot.shape)}")
    if missing := sorted(slots.keys() - shapes.keys()):
        raise WeightsError(f"the model lacks {len(missing)} tensors, {missing[0]!r} among them")
