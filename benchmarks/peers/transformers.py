"""transformers' `generate` as a contestant, bf16, greedy, one padded batch at a time; run outside the checkout.

Its own speculation is prompt lookup; `num_tokens` is how many it drafts, for a single request.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

import torch

from benchmarks.peers.protocol import Job, Recorder, parse_flags, peak_bytes, serve, take_stdout

PAD_ID = 0
"""Any id: padding is masked."""


class Transformers:
    """One model."""

    def __init__(self, folder: str) -> None:
        from transformers import AutoModelForCausalLM

        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
        self._model.generation_config.eos_token_id = None  # exactly so many tokens

    @torch.inference_mode()
    def run(self, raw: dict[str, Any]) -> list[dict[str, Any]]:
        """Run a job whose requests all arrive at once."""
        job = Job.from_json(raw)
        began = time.perf_counter()
        recorder = Recorder(job, began)
        arrivals = [arrival for _, arrival in recorder.due(began)]
        prompt_len = max(len(arrival.prompt_ids) for arrival in arrivals)
        rows = [[PAD_ID] * (prompt_len - len(one.prompt_ids)) + list(one.prompt_ids) for one in arrivals]
        masks = [[0] * (prompt_len - len(one.prompt_ids)) + [1] * len(one.prompt_ids) for one in arrivals]

        num_seen = prompt_len

        def note(input_ids: torch.Tensor, scores: torch.Tensor, **_: Any) -> torch.Tensor:
            """Called as a stopping criterion after every pass: int64 [batch, tokens so far]."""
            nonlocal num_seen
            now = time.perf_counter()
            for number, token_ids in enumerate(input_ids[:, num_seen:].tolist()):
                recorder.tokens(number, token_ids[: prompt_len + arrivals[0].num_new - num_seen], now)
            num_seen = input_ids.shape[1]
            return torch.zeros(len(input_ids), dtype=torch.bool)

        self._model.generate(
            torch.tensor(rows),
            attention_mask=torch.tensor(masks),
            max_new_tokens=arrivals[0].num_new,
            do_sample=False,
            pad_token_id=PAD_ID,
            stopping_criteria=[note],
            prompt_lookup_num_tokens=job.speculation.get("num_tokens"),
        )
        return [asdict(answer) for answer in recorder.answers()]


def main() -> None:
    options, channel = parse_flags(__doc__), take_stdout()
    from transformers import __version__

    contestant = Transformers(options.model)
    hello = {"version": f"transformers {__version__}", "abilities": []}
    serve(channel, {"run": contestant.run, "peak_bytes": peak_bytes}, hello)


if __name__ == "__main__":
    main()
