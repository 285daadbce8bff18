"""llama.cpp as a contestant, through llama-cpp-python: one request at a time, from a GGUF file.

The weights are the file's, 4 bits each as a rule, where the others run them in bf16, so its output is another; with
`--quantize int8` they have 8 bits, as ours. Its own speculation is prompt lookup; `num_tokens` is how many it drafts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.peers.protocol import Arrival, Job, Recorder, parse_flags, peak_bytes, serve, take_stdout

NGRAM_MAX = 8
"""Its lookup follows the longest match of up to so many tokens; with the default, 2, code misleads it more often."""

BATCH = 512
"""Tokens of a pass, at most."""


class LlamaCpp:
    """One model."""

    def __init__(self, path: str, context: int) -> None:
        from llama_cpp import Llama

        class Counted(Llama):  # type: ignore[misc]  # the library is not typed here
            """Counts its passes; with a draft it asks for the logits of the draft's rows only, and copies none.

            The library's own `eval` asks for those of every prompt token, and copies them all: many seconds a prompt.
            """

            num_passes = 0

            def eval(self, tokens: Sequence[int]) -> None:
                """Run tokens after those that are in the cache."""
                self._ctx.kv_cache_seq_rm(-1, self.n_tokens, -1)
                is_draft = self.draft_model is not None and len(tokens) <= BATCH and self.num_passes > 0
                for start in range(0, len(tokens), BATCH):
                    batch = tokens[start : start + BATCH]
                    self._batch.set_batch(batch=batch, n_past=self.n_tokens, logits_all=is_draft)
                    self._ctx.decode(self._batch)
                    self.input_ids[self.n_tokens : self.n_tokens + len(batch)] = batch
                    self.n_tokens += len(batch)
                self._requires_eval = False
                self.num_passes += 1

        threads = len(os.sched_getaffinity(0))
        self._llama: Any = Counted(
            path,
            n_ctx=context,
            n_batch=BATCH,
            n_threads=threads,
            n_threads_batch=threads,
            flash_attn=True,
            verbose=False,
        )
        self._salt = ""

    def run(self, raw: dict[str, Any]) -> list[dict[str, Any]]:
        """Run a job's requests one after the other."""
        job = Job.from_json(raw)
        if job.salt != self._salt:
            self._llama.reset()
            self._salt = job.salt
        self._llama.draft_model = self._lookup(job.speculation.get("num_tokens", 0))
        recorder = Recorder(job, time.perf_counter())
        while due := recorder.due(time.perf_counter()):
            for number, arrival in due:
                self._write(recorder, number, arrival)
        return [asdict(answer) for answer in recorder.answers()]

    def _write(self, recorder: Recorder, number: int, arrival: Arrival) -> None:
        """Tokens of one pass get one time."""
        self._llama.num_passes = 0
        tokens = self._llama.generate(list(arrival.prompt_ids), temp=0.0, repeat_penalty=1.0)
        num_passes, now = -1, 0.0
        for _ in range(arrival.num_new):
            token_id = next(tokens)
            if self._llama.num_passes != num_passes:
                num_passes, now = self._llama.num_passes, time.perf_counter()
            recorder.tokens(number, [token_id], now)
        tokens.close()

    @staticmethod
    def _lookup(num_tokens: int) -> Any:
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

        return LlamaPromptLookupDecoding(NGRAM_MAX, num_tokens) if num_tokens else None


def main() -> None:
    options, channel = parse_flags(__doc__), take_stdout()
    from llama_cpp import __version__, llama_print_system_info

    contestant = LlamaCpp(options.model, options.context)
    built = llama_print_system_info().decode()
    able = " ".join(word for word in ("AVX2", "AVX512", "AVX512_VNNI", "AVX512_BF16") if f"{word} = 1" in built)
    weights = options.model.rpartition("-")[2].removesuffix(".gguf")
    hello = {"version": f"llama-cpp-python {__version__} ({weights} weights; {able})", "abilities": ["prefix"]}
    serve(channel, {"run": contestant.run, "peak_bytes": peak_bytes}, hello)


if __name__ == "__main__":
    main()
