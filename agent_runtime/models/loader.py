"""Loads a model's files into an engine."""

from __future__ import annotations

import logging
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from agent_runtime.errors import BadRequest, CorruptModel, ModelUnavailable
from agent_runtime.models.store import (
    ModelFiles,
    find_tensor_folder,
    hash_file,
    is_sealed,
    load_cache_key,
    locate_copy,
    save_copy,
    seal_copy,
    write_tokenizer_config,
)
from agent_runtime.models.tokenizer import TokenizerBundle, read_folder_tokenizer, read_gguf_tokenizer
from agent_runtime.prompt.forms import find_form
from engine.decoder import Decoder
from engine.device import get_free_bytes
from engine.engine import Engine
from engine.engine_config import EngineConfig
from engine.errors import EngineError, NotEnoughMemory, RankLost, WeightsError
from engine.precision import (
    DtypeChoice,
    Precision,
    ProductTimes,
    QuantizeChoice,
    choose_draft_quantization,
    choose_precision,
    load_or_measure_products,
)
from engine.tensor_parallel import RankSetup, start_ranks
from engine.weights import LoraAdapter, Parameters, load, save_folder
from engine.weights.checkpoint import read_config
from engine.weights.gguf import GGUFModel
from engine.weights.memory import check_memory
from repo_cache.errors import TokenizerError

LOG = logging.getLogger("hunk.models")

CPU = torch.device("cpu")

PROBE = "def add(one: int, other: int) -> int:\n    return one + other\n"
"""Text for which a model in float16 has to stay within its range."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that is ready to run. `peak_bytes` is the highest memory use of the process so far. draft_model: the
    precision of the draft model, if there is one. choosing_adapter: the name of the engine's adapter by which readings
    are scored, if there is one.
    """

    name: str
    engine: Engine
    text: TokenizerBundle
    load_seconds: float
    peak_bytes: int
    draft_model: Precision | None = None
    choosing_adapter: str | None = None


ADAPTERS = Path(__file__).with_name("adapters")
"""Of models of the catalogue, a folder for each (docs/drafts.md): trained to write edits, used to choose readings."""

CHOOSING = "hunk-choosing"
"""What they are called in the engine."""

DRAFT_HEAD_ROWS = 1 << 16
"""Tokens that a draft model on a CPU can draft. The ids of a BPE tokenizer are in the order of its merges: of 3,300
tokens that the 1.5B wrote, 97.8 % have a smaller id. The rest of the LM head is a third of what a pass of the 0.5B
reads."""


def load_model(
    files: ModelFiles,
    cache_dir: Path,
    *,
    dtype: DtypeChoice = "auto",
    limits: EngineConfig | None = None,
    adapter: Path | None = None,
    quantize: QuantizeChoice = "auto",
    kv_int8: bool = False,
    device: torch.device = CPU,
    draft: ModelFiles | None = None,
    tensor_parallel: int = 1,
) -> LoadedModel:
    """Load a model, and a draft model for it.

    `dtype` and `quantize` are resolved by `choose_precision`. A GGUF file is dequantised once, and a bf16 copy is kept
    under `cache_dir`. In another dtype, or with an `adapter` (folder of a LoRA, merged before rounding), it is
    dequantised every time. kv_int8: KV is stored in int8. Weights and KV are on `device`. With `tensor_parallel` ranks
    each layer is shared by as many processes, or cards from the first on. Raises CorruptModel
    if the files are damaged or of an unsupported kind, ModelUnavailable if there is no memory for the weights or the
    KV, BadRequest if the KV would be smaller than a page or the draft model has another tokenizer.
    """
    started = time.perf_counter()
    form = find_form(files.prompt_form)
    get_times = partial(load_or_measure_products, cache_dir / "pass-times")
    precision = choose_precision(dtype, quantize, device, get_times)
    with _name_model(files):
        lora = LoraAdapter(adapter) if adapter is not None else None
        parameters, text = _load_parameters(files, cache_dir, precision, device, lora)
        if tensor_parallel > 1:
            source = _find_source(files, cache_dir, precision, lora)
            decoder: Decoder = start_ranks(
                RankSetup(
                    source,
                    tensor_parallel,
                    precision.stored,
                    precision.quantize,
                    precision.activations,
                    precision.reason,
                    kv_int8,
                    device.type,
                    adapter,
                )
            )
        else:
            decoder = Decoder(parameters, precision.quantize, precision.activations, precision.reason, kv_int8=kv_int8)
            if precision.stored == torch.float16:
                check_range(decoder, text.tokenizer.encode(PROBE))
    draft_model = None if draft is None else _load_draft_model(draft, cache_dir, device, get_times(), text, files.name)
    engine = _make_engine(files.name, decoder, text, limits or EngineConfig(), draft_model)
    peak_bytes = _measure_peak_bytes()
    text = replace(text, form=form)
    precision_of_draft = None if draft_model is None else draft_model.precision
    own = ADAPTERS / files.name
    choosing = None
    if files.sha256 is not None and adapter is None and tensor_parallel == 1 and own.is_dir():
        choosing = CHOOSING
        with _name_model(files):
            engine.load_adapter(choosing, own)
    seconds = time.perf_counter() - started
    return LoadedModel(files.name, engine, text, seconds, peak_bytes, precision_of_draft, choosing)


@contextmanager
def _name_model(files: ModelFiles) -> Iterator[None]:
    """Turn what the engine raises while a model is loaded into errors that name it."""
    try:
        yield
    except NotEnoughMemory as error:
        raise ModelUnavailable(f"model {files.name} cannot be loaded: {error}") from error
    except RankLost as error:
        raise ModelUnavailable(f"model {files.name} cannot be loaded: {error}") from error
    except (WeightsError, TokenizerError) as error:
        raise CorruptModel(f"model {files.name} cannot be loaded: {error}") from error


def _find_source(files: ModelFiles, cache_dir: Path, precision: Precision, lora: LoraAdapter | None) -> Path:
    """Return what ranks read: the folder of safetensors, the bf16 copy of a GGUF file, or the file itself."""
    place = find_tensor_folder(files, cache_dir)
    may_read = files.kind == "safetensors" or (precision.stored == torch.bfloat16 and lora is None)
    return place if may_read and place.is_dir() else files.path


def _load_parameters(
    files: ModelFiles, cache_dir: Path, precision: Precision, device: torch.device, lora: LoraAdapter | None = None
) -> tuple[Parameters, TokenizerBundle]:
    if files.kind == "safetensors":
        return _load_folder(files.path, precision, lora, device)
    if precision.stored == torch.bfloat16 and lora is None:
        return _load_through_copy(files, cache_dir, precision, device)
    return _load_gguf(files.path, precision, lora, device)


def _load_draft_model(
    files: ModelFiles, cache_dir: Path, device: torch.device, times: ProductTimes, text: TokenizerBundle, target: str
) -> Decoder:
    """Load a draft model, in 4 bits where the CPU is quick at it. Raises BadRequest if its tokenizer is another."""
    precision = choose_precision("auto", choose_draft_quantization(device, times), device, lambda: times)
    with _name_model(files):
        parameters, own_text = _load_parameters(files, cache_dir, precision, device)
        own_bytes, target_bytes = own_text.tokenizer.token_bytes(), text.tokenizer.token_bytes()
        if any(own != other for own, other in zip(own_bytes, target_bytes, strict=False)):
            raise BadRequest(
                f"{files.name} cannot draft for {target}: it has another tokenizer; take a smaller model of one family",
                field="draft_model",
            )
        if device.type == "cpu":
            parameters.lm_head = parameters.lm_head[:DRAFT_HEAD_ROWS]
        return Decoder(parameters, precision.quantize, precision.activations, precision.reason)


def _measure_peak_bytes() -> int:
    """Return the most memory that this process has had, in bytes; 0 on Windows, where nothing measures it."""
    try:
        import resource
    except ModuleNotFoundError:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


@torch.inference_mode()
def check_range(decoder: Decoder, token_ids: Sequence[int]) -> None:
    """Raise WeightsError if the model's values leave the range of its dtype for these tokens.

    The limit of float16 is 65,504. A model with larger values would load, and then fail every request.
    """
    ids = torch.tensor(token_ids, device=decoder.weights.device)
    hidden = decoder.forward(ids, decoder.new_caches(1, len(ids)))
    if not decoder.logits(hidden).isfinite().all():
        raise WeightsError("its values do not fit into float16, which ends at 65,504; take bfloat16 or float32")


def _make_engine(
    name: str, decoder: Decoder, text: TokenizerBundle, limits: EngineConfig, draft_model: Decoder | None
) -> Engine:
    try:
        return Engine(decoder, text.tokenizer.token_bytes(), limits, draft_model)
    except EngineError as error:
        raise ModelUnavailable(f"model {name} cannot be loaded: {error}") from error
    except ValueError as error:
        raise BadRequest(f"model {name} cannot be loaded: {error}; raise --kv-gib", field="kv_gib") from error


def _load_through_copy(
    files: ModelFiles, cache_dir: Path, precision: Precision, device: torch.device
) -> tuple[Parameters, TokenizerBundle]:
    """Load the bf16 copy of a GGUF file, or make it.

    Raises CorruptModel if the file is not the catalogue's: a copy of it would stay when the file is replaced.
    """
    place, key = locate_copy(files, cache_dir), load_cache_key(cache_dir)
    if place.is_dir():
        try:
            if is_sealed(place, files, key):
                return _load_folder(place, precision, None, device)
            LOG.warning("the converted copy of %s is not as it was made, and is made anew", files.name)
        except NotEnoughMemory:
            raise
        except (WeightsError, TokenizerError, CorruptModel):
            pass
        shutil.rmtree(place, ignore_errors=True)  # a damaged copy costs a conversion, not the start
    try:
        source_sha256 = hash_file(files.path)
    except OSError as error:
        raise CorruptModel(f"model {files.name} cannot be read: {error.strerror or error}") from error
    if files.sha256 and files.sha256 != source_sha256:
        raise CorruptModel(
            f"{files.path} is damaged: its SHA-256 is {source_sha256}, not {files.sha256}; "
            f"`hunk models pull {files.name}` replaces it"
        )

    seal = partial(seal_copy, source=files.path, source_sha256=source_sha256, key=key)
    return _load_gguf(files.path, precision, None, device, keep_at=place, seal=seal)


def _load_folder(
    folder: Path, precision: Precision, lora: LoraAdapter | None, device: torch.device
) -> tuple[Parameters, TokenizerBundle]:
    check_memory(read_config(folder), precision.stored, precision.quantize, device)
    parameters = load(folder, precision.stored, lora, device)
    tokenizer, metadata = read_folder_tokenizer(folder)
    return parameters, metadata.to_bundle(tokenizer)


def _load_gguf(
    path: Path,
    precision: Precision,
    lora: LoraAdapter | None,
    device: torch.device,
    *,
    keep_at: Path | None = None,
    seal: Callable[[Path], None] = lambda _: None,
) -> tuple[Parameters, TokenizerBundle]:
    model = GGUFModel(path)
    check_memory(model.config, precision.stored, precision.quantize, device)
    tokenizer, metadata = read_gguf_tokenizer(model)
    parameters = load(model, precision.stored, lora, device)

    def write(folder: Path) -> None:
        save_folder(parameters, folder)
        tokenizer.save(folder / "tokenizer.json")
        write_tokenizer_config(
            folder,
            chat_template=metadata.chat_template,
            eos_token=metadata.eos_token,
            bos_token=metadata.bos_token,
        )
        seal(folder)

    free = get_free_bytes(device)
    if keep_at is not None and (free is None or parameters.num_bytes < free):  # it is written in one piece
        save_copy(keep_at, parameters.num_bytes, write)
    return parameters, metadata.to_bundle(tokenizer)
