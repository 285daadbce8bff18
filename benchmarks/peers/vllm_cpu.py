"""vLLM on the CPU as a contestant; run by the Python of its own environment, outside the checkout.

Its engine is stepped in this process, as ours is: no tokenizer, no detokenising, nothing sent between processes. With
`--speculation` its jobs may say how to draft (vllm_drafts.py); without, it runs as it does by default.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import asdict
from typing import Any

from benchmarks.peers import vllm_drafts
from benchmarks.peers.jobs import Job, Recorder
from benchmarks.peers.serving import peak_bytes, serve, take_stdout

SETTINGS = {
    "VLLM_CPU_KVCACHE_SPACE": "2",  # GB
    "VLLM_CPU_OMP_THREADS_BIND": "0-1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_PLUGINS": "",  # Arctic Inference's is for another version
}


class VLLM:
    """One engine."""

    def __init__(self, folder: str, context: int, *, speculation: bool) -> None:
        from vllm import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        arguments = EngineArgs(
            model=folder,
            dtype="bfloat16",
            max_model_len=context,
            skip_tokenizer_init=True,
            generation_config="vllm",  # nothing but what a request says
            enable_prefix_caching=True,
            disable_log_stats=True,
            speculative_config={"model": vllm_drafts.CLASS, "num_speculative_tokens": vllm_drafts.LARGEST}
            if speculation
            else None,
        )
        self._engine: Any = LLMEngine.from_engine_args(arguments)
        self._speculation = speculation
        self._num_jobs = 0

    def run(self, raw: dict[str, Any]) -> list[dict[str, Any]]:
        """Run a job."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        job = Job.from_json(raw)
        self._num_jobs += 1  # no two requests are called alike: the suffix trees are kept by name
        if self._speculation:
            runner = self._engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
            runner.drafter.choose(job.speculation, runner.input_batch)
        recorder = Recorder(job, time.perf_counter())
        while (due := recorder.due(time.perf_counter())) or self._engine.has_unfinished_requests():
            for number, arrival in due:
                prompt = {"prompt_token_ids": list(arrival.prompt_ids), "cache_salt": job.salt}
                sampling = SamplingParams(
                    temperature=0.0,
                    max_tokens=arrival.num_new,
                    ignore_eos=True,
                    detokenize=False,
                    output_kind=RequestOutputKind.DELTA,
                )
                self._engine.add_request(f"{self._num_jobs}:{number}", prompt, sampling)
            for output in self._engine.step():
                number = int(output.request_id.rpartition(":")[2])
                recorder.tokens(number, list(output.outputs[0].token_ids), time.perf_counter())
        return [asdict(answer) for answer in recorder.answers()]


def main() -> None:
    """Load the model and serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="a folder with config.json and model.safetensors")
    parser.add_argument("--context", type=int, required=True, help="tokens of prompt and answer")
    parser.add_argument("--speculation", action="store_true", help="jobs say how to draft")
    options = parser.parse_args()
    channel = take_stdout()
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    from vllm import __version__

    contestant = VLLM(options.model, options.context, speculation=options.speculation)
    abilities = ["arrivals", "prefix", *(vllm_drafts.methods() if options.speculation else [])]
    hello = {"version": f"vLLM CPU {__version__}", "abilities": abilities}
    serve(channel, {"run": contestant.run, "peak_bytes": peak_bytes}, hello)


if __name__ == "__main__":
    main()
