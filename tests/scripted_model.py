"""A model that writes what a test says: the same on every machine, in an engine that is real but for the arithmetic.

    python -m tests.scripted_model SCRIPT serve --port 0 ...       `hunk serve`, whose model follows the script
    python -m tests.scripted_model SCRIPT examples/agent_loop.py   a program that loads a model itself

SCRIPT is a JSON list of `Line`s; the first whose texts all stand in a prompt answers it. Tokenizer, chat template,
prompts, scheduling, pages, drafts and their acceptance are those of the named model of the catalogue; the decoder is a
tiny one, and which token is the likeliest is the script's.
"""

from __future__ import annotations

import json
import runpy
import sys
import time
import weakref
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from agent_runtime.cli import main as command_line
from agent_runtime.llm import opener
from agent_runtime.models.loader import LoadedModel
from agent_runtime.models.store import ModelFiles
from agent_runtime.models.tokenizer import TokenizerBundle, read_gguf_tokenizer
from agent_runtime.prompt.forms import TAG, find_form
from engine.decoder import Batch, Decoder, KVStore
from engine.engine import Engine
from engine.engine_config import EngineConfig
from engine.kv_cache import KVPages
from engine.kv_pool import KVPool
from engine.request import RequestState
from engine.runner import cuda_runner
from engine.runner.kv_reuse import KVReuse
from engine.runner.step_rows import StepRows
from engine.runner.torch_runner import TorchRunner, Wait
from engine.weights.gguf import GGUFModel
from kernels.accept import TopTokens
from tests.engine.tiny import tiny_config, tiny_parameters

CONTEXT = 32768
SURE = 16.0
"""The likeliest token's logit; all others have 0, so that a request with a high temperature samples them."""


@dataclass(frozen=True)
class Line:
    """What is answered to a prompt that holds all of `where`; each of its passes takes `pass_s` seconds."""

    where: tuple[str, ...]
    answer: str
    pass_s: float = 0.0


def merge_of(text: str, *where: str, pass_s: float = 0.0) -> Line:
    """A whole file, or a region of it, as the answer to an edit whose prompt holds all of `where`."""
    return Line(where, f"{text.removesuffix(chr(10))}\n</{TAG}>", pass_s)


ENDLESS = Line((), "and so on " * 400, pass_s=0.02)
"""Of a script's end, for prompts about which nothing is said: long, and slow enough to be left half way."""


def write_script(path: Path, *lines: Line) -> Path:
    """Write a script that a process of its own reads; returns its path."""
    path.write_text(json.dumps([asdict(line) for line in (*lines, ENDLESS)]))
    return path


class Script:
    """Finds the answer to a prompt, in tokens."""

    def __init__(self, lines: Sequence[Line], text: TokenizerBundle) -> None:
        self._lines = lines
        self._text = text
        self._found: weakref.WeakKeyDictionary[RequestState, tuple[Line, list[int]]] = weakref.WeakKeyDictionary()

    def answer(self, generation: RequestState) -> tuple[Line, list[int]]:
        """The line that fits a request's prompt, and the tokens that follow the prompt: its end behind them."""
        if generation not in self._found:
            prompt = generation.request.prompt_ids
            table = self._text.tokenizer.token_bytes()
            shown = b"".join(table[number] for number in prompt).decode("utf-8", "replace")
            line = next(line for line in self._lines if all(part in shown for part in line.where))
            (ids,) = self._text.tokenizer.encode_batch([line.answer])
            answer = [*ids.tolist(), min(self._text.stop_ids)]
            # A reading is weighed behind a prompt that the answer has begun in.
            sizes = range(len(answer), -1, -1)
            begun = next(size for size in sizes if list(prompt[len(prompt) - size :]) == answer[:size])
            self._found[generation] = line, answer[begun:]
        return self._found[generation]


class ScriptedDecoder(Decoder):
    """Takes a hidden state's first number for the likeliest token."""

    next_ids: list[int] | None = None
    """What follows each row of the next pass; None: whatever comes."""

    def forward_batch(self, batch: Batch, kv: KVStore) -> Tensor:
        """The rows' KV is written as ever."""
        hidden = super().forward_batch(batch, kv).clone()
        if self.next_ids is not None:
            hidden[:, 0] = torch.tensor(self.next_ids, dtype=hidden.dtype)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Zeros, but for the likeliest token."""
        logits = torch.zeros(len(hidden), self.config.vocab_size)
        logits[torch.arange(len(hidden)), self._likeliest(hidden)] = SURE
        return logits

    def likeliest(self, hidden: Tensor) -> TopTokens:
        """The token that the row says."""
        size = len(hidden)
        sure, others = np.full(size, SURE, np.float32), np.zeros(size, np.float32)
        return TopTokens(self._likeliest(hidden).numpy().astype(np.intp), sure, others)

    def _likeliest(self, hidden: Tensor) -> Tensor:
        return hidden[:, 0].round().long().clamp(0, self.config.vocab_size - 1)


class ScriptedPasses(TorchRunner):
    """Tells the decoder before each pass what the script has behind each of its rows."""

    script: Script

    def __init__(self, model: Decoder, pool: KVPool, reuse: KVReuse | None) -> None:
        super().__init__(model, pool, reuse)
        assert isinstance(model, ScriptedDecoder)
        self._decoder = model

    def launch(self, all_rows: Sequence[StepRows], pages: KVPages) -> Wait:
        """As `ModelRunner.launch`, in the script's time."""
        answers = [self.script.answer(rows.state) for rows in all_rows]
        time.sleep(max(line.pass_s for line, _ in answers))
        self._decoder.next_ids = [
            answer[min(max(position + 1 - rows.state.usage.prompt, 0), len(answer) - 1)]
            for rows, (_, answer) in zip(all_rows, answers, strict=True)
            for position in rows.positions
        ]
        try:
            return super().launch(all_rows, pages)
        finally:
            self._decoder.next_ids = None


def scripted_engine(lines: Sequence[Line], text: TokenizerBundle, config: EngineConfig) -> Engine:
    """An engine whose model follows the lines."""

    class Passes(ScriptedPasses):
        script = Script(lines, text)

    table = text.tokenizer.token_bytes()
    decoder = ScriptedDecoder(tiny_parameters(tiny_config(vocab_size=len(table), max_positions=CONTEXT)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_runner, "TorchRunner", Passes)
        return Engine(decoder, table, config)


def load_scripted(
    lines: Sequence[Line], files: ModelFiles, cache_dir: Path, *, limits: EngineConfig | None = None, **_: object
) -> LoadedModel:
    """In place of `load_model`: the text side of the model's file, and a decoder that follows the script."""
    started = time.perf_counter()
    tokenizer, metadata = read_gguf_tokenizer(GGUFModel(files.path))
    text = replace(metadata.to_bundle(tokenizer), form=find_form(files.prompt_form))
    engine = scripted_engine(lines, text, replace(limits or EngineConfig(), pass_times_dir=None))
    return LoadedModel(files.name, engine, text, time.perf_counter() - started, 0)


def main() -> None:
    """Run a command of `hunk`, or another program, with the script in place of every model."""
    script, command, *_ = sys.argv[1:]
    lines = [Line(**line) for line in json.loads(Path(script).read_text())]
    opener.load_model = partial(load_scripted, lines)  # type: ignore[assignment]
    if command.endswith(".py"):
        sys.argv = sys.argv[2:]
        runpy.run_path(command, run_name="__main__")
    else:
        command_line.set_environment = lambda: None  # it is for torch, which is here already
        sys.argv = ["hunk", *sys.argv[2:]]
        command_line.run()


if __name__ == "__main__":
    main()
