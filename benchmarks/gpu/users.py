"""Decoding of many users on a card, and how long its kernels run of that time: `python -m benchmarks.gpu.users`.

The model has the shape of Qwen2.5 and random weights. Users have prompts of their own and write equally many tokens;
the time starts when all of them decode. The engine is configured as that of a service.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import replace

import torch

from agent_runtime.llm.opener import CARD_LIMITS
from agent_runtime.models.config import KV_SHARE
from benchmarks.gpu.__main__ import DTYPE, NO_CARD
from benchmarks.gpu.bounds import SHAPES, draw_parameters
from benchmarks.gpu.card import NoCard, cuda_device
from benchmarks.gpu.engine import draw_ids, settle
from benchmarks.harness import Row, describe_machine, make_parser, render_rows, write_json
from engine.core import EngineCore
from engine.decoder import Decoder
from engine.engine_config import EngineConfig, SchedulerConfig
from engine.types import GenerationRequest

USERS = (1, 16, 64)
PROMPT, WARM_UP = 512, 24
SAMPLING = {"greedy": (0.0, 1.0), "temperature 0.7": (0.7, 1.0), "temperature 0.7, top-p 0.9": (0.7, 0.9)}
"""Temperature and top-p."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the table and write the JSON; exits with NO_CARD where there is no card."""
    parser = make_parser("gpu.users", __doc__)
    parser.add_argument("--model", choices=SHAPES, default="1.5b", help="shape of the model")
    parser.add_argument("--tokens", type=int, default=96, help="tokens that each user writes")
    options = parser.parse_args(arguments)
    try:
        device = cuda_device()
    except NoCard as error:
        print(error, file=sys.stderr)
        sys.exit(NO_CARD)
    decoder = Decoder(draw_parameters(SHAPES[options.model], DTYPE, device, 1))
    scheduler = replace(SchedulerConfig(), **CARD_LIMITS)
    core = EngineCore(decoder, [], EngineConfig(kv_share=KV_SHARE, scheduler=scheduler))
    rows: list[Row] = []
    for num_users in USERS:
        row: Row = {"model": options.model, "users": num_users}
        for name, (temperature, top_p) in SAMPLING.items():
            decode(core, num_users, WARM_UP, temperature, top_p)
            settle(core)
            row[name] = decode(core, num_users, options.tokens, temperature, top_p)
        row["kernel_share"] = measure_kernel_share(core, num_users, options.tokens)
        rows.append(row)
        print(f"{num_users} users: {row['greedy']:.0f} tok/s", flush=True)
    columns = {"model": "{model}", "users": "{users}"} | {name: f"{{{name}:n}}" for name in SAMPLING}
    print(f"{describe_machine()}\n{torch.cuda.get_device_name(device)}\n")
    print(render_rows(rows, columns | {"kernels run": "{kernel_share:.0%}"}))
    write_json(options.json, {"machine": describe_machine(), "card": torch.cuda.get_device_name(device)}, rows)


def decode(core: EngineCore, num_users: int, num_tokens: int, temperature: float, top_p: float) -> float:
    """Return the tokens a second of all users together, from the step on in which all of them decode."""
    core.forget_cached()
    for user in range(num_users):
        prompt = draw_ids(PROMPT, core.model.config.vocab_size, user)
        core.add(GenerationRequest(prompt, num_tokens, temperature=temperature, top_p=top_p, seed=user))
    num_given, began = 0, 0.0
    while core.scheduler.has_pending_work():
        given = sum(len(output.step.token_ids) for output in core.step() if output.step is not None)
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
