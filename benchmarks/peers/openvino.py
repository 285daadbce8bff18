"""OpenVINO GenAI as a contestant, from a GGUF file: continuous batching, and prompt lookup as its own speculation.

Its prefix cache is off: it cannot be told to keep two jobs apart. `num_tokens` of a speculation is how many tokens it
drafts. A pipeline drafts for all requests or for none, so there are two if jobs say how to draft.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from benchmarks.peers.protocol import Job, Recorder, parse_flags, peak_bytes, serve, take_stdout

KV_GB = 2
BATCH = 512
"""Tokens of a pass, at most."""

NGRAM_MAX = 8
"""Its lookup follows the longest match of up to so many tokens."""


class OpenVINO:
    """One model."""

    def __init__(self, path: str, *, speculation: bool) -> None:
        self._plain = self._open(path, {})
        self._lookup = self._open(path, {"prompt_lookup": True}) if speculation else None

    @staticmethod
    def _open(path: str, properties: dict[str, Any]) -> Any:
        from openvino_genai import ContinuousBatchingPipeline, SchedulerConfig

        config = SchedulerConfig()
        config.cache_size = KV_GB
        config.max_num_batched_tokens = BATCH
        config.enable_prefix_caching = False
        return ContinuousBatchingPipeline(path, scheduler_config=config, device="CPU", properties=properties)

    def run(self, raw: dict[str, Any]) -> list[dict[str, Any]]:
        import numpy as np
        from openvino import Tensor
        from openvino_genai import GenerationConfig

        job = Job.from_json(raw)
        pipeline: Any = self._lookup if job.speculation else self._plain
        recorder = Recorder(job, time.perf_counter())
        handles: dict[int, Any] = {}
        while (due := recorder.due(time.perf_counter())) or pipeline.has_non_finished_requests():
            for number, arrival in due:
                wanted = GenerationConfig(
                    max_new_tokens=arrival.num_new, min_new_tokens=arrival.num_new, ignore_eos=True, do_sample=False
                )
                if job.speculation:
                    wanted.num_assistant_tokens = job.speculation["num_tokens"]
                    wanted.max_ngram_size = NGRAM_MAX
                prompt = Tensor(np.array([arrival.prompt_ids], dtype=np.int64))
                handles[number] = pipeline.add_request(number, prompt, wanted)
            pipeline.step()
            now = time.perf_counter()
            for number, handle in handles.items():
                while handle.can_read():
                    for output in handle.read().values():
                        recorder.tokens(number, output.generated_ids, now)
        return [asdict(answer) for answer in recorder.answers()]


def main() -> None:
    options, channel = parse_flags(__doc__), take_stdout()
    from openvino import Core
    from openvino_genai import __version__

    contestant = OpenVINO(options.model, speculation=options.speculation)
    able = ", ".join(Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"))
    weights = options.model.rpartition("-")[2].removesuffix(".gguf")
    hello = {"version": f"OpenVINO GenAI {__version__} ({weights} weights; CPU: {able})", "abilities": ["arrivals"]}
    serve(channel, {"run": contestant.run, "peak_bytes": peak_bytes}, hello)


if __name__ == "__main__":
    main()
