"""Decoding of many users on a card, and how long its kernels run of that time: `python -m benchmarks.gpu.users`.

The model has the shape of Qwen2.5 and random weights. Users have prompts of their own and write equally many tokens;
the time starts when all of them decode. The engine is configured as that of a service. `--engine vllm` measures vLLM
on the same prompts, in a Python that has it, with weights of its own drawing.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from agent_runtime.llm.opener import CARD_LIMITS
from agent_runtime.models.config import KV_SHARE
from benchmarks.gpu.__main__ import DTYPE, NO_CARD
from benchmarks.gpu.bounds import SHAPES, draw_parameters
from benchmarks.gpu.card import NoCard, cuda_device
from benchmarks.gpu.engine import draw_ids, settle
from benchmarks.harness import Row, describe_machine, make_parser, render_rows, write_json
from engine.config import ModelConfig
from engine.core import EngineCore
from engine.decoder import Decoder
from engine.engine_config import EngineConfig, SchedulerConfig
from engine.families import dump_config
from engine.types import GenerationRequest

USERS = (1, 16, 64)
PROMPT, WARM_UP = 512, 24
SAMPLING = {"greedy": (0.0, 1.0), "temperature 0.7": (0.7, 1.0), "temperature 0.7, top-p 0.9": (0.7, 0.9)}
"""Temperature and top-p."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the table and write the JSON; exits with NO_CARD where there is no card."""
    parser = make_parser("gpu.users", __doc__)
    parser.add_argument("--model", choices=SHAPES, default="1.5b", help="shape of the model")
    parser.add_argument("--engine", choices=("hunk", "vllm"), default="hunk")
    parser.add_argument("--tokens", type=int, default=96, help="tokens that each user writes")
    options = parser.parse_args(arguments)
    try:
        device = cuda_device()
    except NoCard as error:
        print(error, file=sys.stderr)
        sys.exit(NO_CARD)
    config = SHAPES[options.model]
    measure = measure_vllm if options.engine == "vllm" else measure_hunk
    rows = measure(config, options.tokens)
    for row in rows:
        row["model"] = options.model
    columns = {"model": "{model}", "users": "{users}"} | {name: f"{{{name}:n}}" for name in SAMPLING}
    columns |= {"kernels run": "{kernel_share:.0%}"} if options.engine == "hunk" else {}
    print(f"{describe_machine()}\n{torch.cuda.get_device_name(device)}\n")
    print(render_rows(rows, columns))
    write_json(options.json, {"machine": describe_machine(), "card": torch.cuda.get_device_name(device)}, rows)


def measure_hunk(config: ModelConfig, num_tokens: int) -> list[Row]:
    """Return a row for each number of users."""
    decoder = Decoder(draw_parameters(config, DTYPE, cuda_device(), 1))
    scheduler = replace(SchedulerConfig(), **CARD_LIMITS)
    core = EngineCore(decoder, [], EngineConfig(kv_share=KV_SHARE, scheduler=scheduler))

    def run(num_users: int, num_tokens: int, temperature: float, top_p: float) -> float:
        rate = decode(core, num_users, num_tokens, temperature, top_p)
        settle(core)
        return rate

    return [
        row | {"kernel_share": measure_kernel_share(core, row["users"], num_tokens)}
        for row in measure_users(run, num_tokens)
    ]


def measure_users(run: Callable[[int, int, float, float], float], num_tokens: int) -> list[Row]:
    """Return a row for each number of users. `run` takes users, tokens, temperature and top-p."""
    rows: list[Row] = []
    for num_users in USERS:
        row: Row = {"users": num_users}
        for name, sampling in SAMPLING.items():
            run(num_users, WARM_UP, *sampling)
            row[name] = run(num_users, num_tokens, *sampling)
        rows.append(row)
        print(f"{num_users} users: {row['greedy']:.0f} tok/s", flush=True)
    return rows


def measure_vllm(config: ModelConfig, num_tokens: int, **settings: Any) -> list[Row]:
    """Return vLLM's row for each number of users."""
    from vllm import EngineArgs, SamplingParams
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.llm_engine import LLMEngine

    with TemporaryDirectory() as folder:
        raw = dump_config(config) | {"torch_dtype": "bfloat16"}
        Path(folder, "config.json").write_text(json.dumps(raw), encoding="utf-8")
        arguments: dict[str, Any] = {"model": folder, "load_format": "dummy", "dtype": "bfloat16"}
        arguments |= {"skip_tokenizer_init": True, "generation_config": "vllm", "enable_prefix_caching": False}
        arguments |= {"max_model_len": 2 * PROMPT, "max_num_seqs": max(USERS), "disable_log_stats": True}
        engine: Any = LLMEngine.from_engine_args(EngineArgs(**arguments | settings))
        num_runs = 0

        def run(num_users: int, num_tokens: int, temperature: float, top_p: float) -> float:
            nonlocal num_runs
            num_runs += 1
            for user in range(num_users):
                sampling = SamplingParams(
                    temperature=temperature,
                    top_p=top_p,
                    seed=user,
                    max_tokens=num_tokens,
                    ignore_eos=True,
                    detokenize=False,
                    output_kind=RequestOutputKind.DELTA,
                )
                prompt = {"prompt_token_ids": list(draw_ids(PROMPT, config.vocab_size, user))}
                engine.add_request(f"{num_runs}:{user}", prompt, sampling)

            def step() -> int:
                return sum(len(each.outputs[0].token_ids) for each in engine.step())

            return time_decoding(step, engine.has_unfinished_requests, num_users)

        return measure_users(run, num_tokens)


def decode(core: EngineCore, num_users: int, num_tokens: int, temperature: float, top_p: float) -> float:
    """Return the tokens a second of all users together, from the step on in which all of them decode."""
    core.forget_cached()
    for user in range(num_users):
        prompt = draw_ids(PROMPT, core.model.config.vocab_size, user)
        core.add(GenerationRequest(prompt, num_tokens, temperature=temperature, top_p=top_p, seed=user))

    def step() -> int:
        return sum(len(output.step.token_ids) for output in core.step() if output.step is not None)

    return time_decoding(step, core.scheduler.has_pending_work, num_users)


def time_decoding(step: Callable[[], int], has_work: Callable[[], bool], num_users: int) -> float:
    """Return the tokens a second from the step on that gives each user one. `step` returns how many it gave."""
    num_given, began = 0, 0.0
    while has_work():
        given = step()
        if began:
            num_given += given
        elif given >= num_users:
            began = time.perf_counter()
    return num_given / (time.perf_counter() - began)


def measure_kernel_share(core: EngineCore, num_users: int, num_tokens: int) -> float:
    """Return the time of all kernels by that of a run, prefill included, by torch's profiler."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
        began = time.perf_counter()
        decode(core, num_users, num_tokens, 0.0, 1.0)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - began
    return float(sum(event.self_device_time_total for event in profiler.key_averages())) / 1e6 / seconds


if __name__ == "__main__":
    main()
