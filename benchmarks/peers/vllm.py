"""vLLM on the CPU as a contestant, run by the Python of its own environment, outside the checkout."""

from __future__ import annotations

import copy
import importlib.util
import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.peers.protocol import Job, Recorder, Speculation, parse_flags, peak_bytes, serve, take_stdout

LARGEST = 64
"""Most tokens of a draft."""

NGRAM_MIN, NGRAM_MAX = 3, 16
"""Its n-gram drafter follows the longest match of so many tokens; by default always 5, which code that repeats misleads
more often."""

CLASS = "benchmarks.peers.vllm.Drafts"


def list_methods() -> list[str]:
    """Return what can be measured here; suffix drafts need Arctic Inference."""
    return ["ngram", *(["suffix"] if importlib.util.find_spec("arctic_inference") else [])]


class Drafts:
    """What vLLM calls for drafts; it passes each call on to the drafter of the job that runs."""

    def __init__(self, config: Any) -> None:
        self._config = config
        self._made: dict[tuple[tuple[str, Any], ...], Any] = {}
        self._chosen: Speculation = {}
        self._input_batch: Any = None

    def choose(self, speculation: Speculation, input_batch: Any) -> None:
        """How to draft from now on. `input_batch` is the runner's, which the suffix drafter reads."""
        self._chosen, self._input_batch = speculation, input_batch
        if speculation and (key := tuple(speculation.items())) not in self._made:
            self._made[key] = self._ngram() if speculation["method"] == "ngram" else self._suffix(speculation)

    def propose(
        self, sampled_token_ids: list[list[int]], num_tokens: Any, token_ids: Any, slot_mappings: Any = None
    ) -> Sequence[Sequence[int]]:
        """Return the drafts of all requests of a batch."""
        if not self._chosen:
            return [[] for _ in sampled_token_ids]
        drafter = self._made[tuple(self._chosen.items())]
        drafts: Sequence[Sequence[int]]
        if self._chosen["method"] == "ngram":
            drafts = drafter.propose(self._chosen["num_tokens"], sampled_token_ids, num_tokens, token_ids)
        else:
            drafts = drafter.propose(LARGEST, self._input_batch, sampled_token_ids)
        return drafts

    def load_model(self, *_: Any) -> None:
        """There is no model to load."""

    def _ngram(self) -> Any:
        from vllm.v1.spec_decode.ngram_proposer import NgramProposer

        return NgramProposer(self._configure(prompt_lookup_min=NGRAM_MIN, prompt_lookup_max=NGRAM_MAX))

    def _suffix(self, speculation: Speculation) -> Any:
        from vllm.v1.spec_decode.suffix_decoding import SuffixDecodingProposer

        return SuffixDecodingProposer(
            self._configure(
                suffix_decoding_max_tree_depth=speculation["depth"],
                suffix_decoding_max_spec_factor=speculation["factor"],
                suffix_decoding_max_cached_requests=0,  # what was written before, this very text among it, helps none
            )
        )

    def _configure(self, **settings: float) -> Any:
        config = copy.copy(self._config)
        config.speculative_config = copy.copy(config.speculative_config)
        for name, value in settings.items():
            setattr(config.speculative_config, name, value)
        return config


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
            speculative_config={"model": CLASS, "num_speculative_tokens": LARGEST} if speculation else None,
        )
        self._engine: Any = LLMEngine.from_engine_args(arguments)
        self._speculation = speculation
        self._num_jobs = 0

    def run(self, raw: dict[str, Any]) -> list[dict[str, Any]]:
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
    options, channel = parse_flags(__doc__), take_stdout()
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    from vllm import __version__

    contestant = VLLM(options.model, options.context, speculation=options.speculation)
    abilities = ["arrivals", "prefix", *(list_methods() if options.speculation else [])]
    hello = {"version": f"vLLM CPU {__version__}", "abilities": abilities}
    serve(channel, {"run": contestant.run, "peak_bytes": peak_bytes}, hello)


if __name__ == "__main__":
    main()
