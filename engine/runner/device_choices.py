"""Chooses the tokens after the rows of a pass on the device, while the host goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from engine.decoder import LM_HEAD_ROWS, Decoder
from engine.runner.staged_arrays import Arrays, stage_arrays
from engine.runner.step_rows import Verification
from engine.sampling import hide_unlikely, is_near_tie, uniform
from engine.types import GenerationRequest, TokenLogprob
from kernels.accept import AcceptOutput, Draws, TopTokens, accept
from kernels.op import upload

NO_TOKEN = -1
"""Stands for the draft's token after its last row, and for a token that is not forced."""


class DeviceChoices:
    """The choices after the rows of a pass: they are launched at once, and the host waits for them in the end.

    On a card, scoring the rows after a rejection costs less than asking where it is. Requests with log-probabilities,
    logit bias or a penalty have LM_HEAD_ROWS rows scored at a time, in float32, which bounds their memory.
    """

    def __init__(self, model: Decoder, verifications: Sequence[Verification]) -> None:
        """Launch the choices for all rows whose tokens are not forced."""
        self._model = model
        open_rows = [(each, rows) for each in verifications if (rows := each.next_rows)]
        self._plain = [(each, rows) for each, rows in open_rows if not each.sampler.needs_rows]
        self._borders = [0, *accumulate(len(own) for _, own in self._plain)]
        self._accepted = self._choose_plain() if self._plain else None
        others = [(each, rows) for each, rows in open_rows if each.sampler.needs_rows]
        self._others = [(each, rows, _choose_by_pieces(model, each, rows)) for each, rows in others]

    def wait(self) -> None:
        """Give each verification its tokens."""
        if self._accepted is not None:
            self._give_plain(self._accepted.to_host())
        for each, rows, pieces in self._others:
            _give_by_pieces(each, rows, pieces)

    def _choose_plain(self) -> AcceptOutput:
        plain, hidden = self._plain, self._plain[0][0].hidden
        rows = [row for _, own in plain for row in own]
        draft = [token_id for each, own in plain for token_id in (*each.draft[own.start - each.first_row :], NO_TOKEN)]
        arrays: Arrays = {
            "rows": np.array(rows, dtype=np.int64),
            "draft": np.array(draft, dtype=np.int64),
            "row_starts": np.array(self._borders, dtype=np.int32),
        }
        requests = [each.sampler.request for each, own in plain for _ in own]
        samples = any(each.temperature > 0.0 for each in requests)
        if samples:
            positions = [len(each.output_ids) + row - each.first_row for each, own in plain for row in own]
            arrays |= _draw_arrays(requests, positions)
        staged = stage_arrays(arrays, hidden.device)
        logits = self._model.logits(hidden if len(rows) == len(hidden) else hidden.index_select(0, staged["rows"]))
        draws = Draws(staged["temperatures"], staged["numbers"]) if samples else None
        for first in range(0, len(logits), LM_HEAD_ROWS) if samples else ():
            _hide_unlikely_rows(logits[first : first + LM_HEAD_ROWS], requests[first : first + LM_HEAD_ROWS])
        return accept(logits, staged["draft"], staged["row_starts"], draws)

    def _give_plain(self, accepted: AcceptOutput) -> None:
        top, dtype = accepted.top_tokens, self._plain[0][0].hidden.dtype
        found = TopTokens(accepted.token_ids, top.largest, top.second)
        ids, largest, ties = found.token_ids.tolist(), top.largest.tolist(), is_near_tie(found, dtype).tolist()
        counts = accepted.num_accepted.tolist()
        for (each, own), first, count in zip(self._plain, self._borders[:-1], counts, strict=True):
            taken = slice(first, first + min(count + 1, len(own)))
            each.accept(ids[taken], largest[taken], ties[taken])


def _draw_arrays(requests: Sequence[GenerationRequest], positions: Sequence[int]) -> Arrays:
    """Return the temperature of each row, and the number of its request's random stream."""
    numbers = [uniform(each.seed, at) for each, at in zip(requests, positions, strict=True)]
    return {
        "temperatures": np.array([each.temperature for each in requests], dtype=np.float32),
        "numbers": np.array(numbers, dtype=np.float64),
    }


def _hide_unlikely_rows(logits: Tensor, requests: Sequence[GenerationRequest]) -> None:
    """Hide what a request's top-k, top-p and min-p leave out, in the rows that have any of them."""
    filtered = [at for at, each in enumerate(requests) if each.temperature > 0.0 and each.is_filtered]
    if len(filtered) == len(requests):
        hide_unlikely(logits, requests)
    elif filtered:
        rows = upload(torch.tensor(filtered), logits.device)
        kept = logits[rows]
        hide_unlikely(kept, [requests[at] for at in filtered])
        logits[rows] = kept


@dataclass(frozen=True, slots=True)
class _Piece:
    """What was chosen for some rows of a request, and, if it asks for them, the log-probabilities of these tokens
    [num_rows], and of the most likely ones with their ids [num_rows, logprobs]. All of it is on the device.
    """

    accepted: AcceptOutput
    logprobs: tuple[Tensor, Tensor, Tensor] | None


def _choose_by_pieces(model: Decoder, each: Verification, rows: range) -> list[_Piece]:
    """Launch the choices of a request that needs more of its rows than the next token, or changes its logits."""
    return [
        _choose_piece(model, each, range(first, min(first + LM_HEAD_ROWS, rows.stop)))
        for first in range(rows.start, rows.stop, LM_HEAD_ROWS)
    ]


def _choose_piece(model: Decoder, each: Verification, rows: range) -> _Piece:
    request, offset = each.sampler.request, rows.start - each.first_row
    known, draft = [*each.output_ids, *each.draft[:offset]], each.draft[offset : offset + len(rows)]
    positions = range(len(known), len(known) + len(rows))
    forced = [*request.forced_ids[len(known) : len(known) + len(rows)]]
    arrays: Arrays = {
        "draft": np.array([*draft, *[NO_TOKEN] * (len(rows) - len(draft))], dtype=np.int64),
        "row_starts": np.array([0, len(rows)], dtype=np.int32),
        "forced": np.array([*forced, *[NO_TOKEN] * (len(rows) - len(forced))], dtype=np.int64),
    }
    samples = request.temperature > 0.0
    if samples:
        arrays |= _draw_arrays([request] * len(rows), positions)
    staged = stage_arrays(arrays, each.hidden.device)
    scores = model.logits(each.hidden[rows.start : rows.stop]).float()
    each.sampler.change_rows(scores, known, draft)
    filtered = scores
    if samples and request.is_filtered:
        filtered = scores.clone()
        hide_unlikely(filtered, [request] * len(rows))
    draws = Draws(staged["temperatures"], staged["numbers"]) if samples else None
    accepted = accept(filtered, staged["draft"], staged["row_starts"], draws)
    if request.logprobs is None:
        return _Piece(accepted, None)
    chosen, likeliest = accepted.split_columns()[:2]
    token_ids = torch.where(staged["forced"] == NO_TOKEN, chosen.long(), staged["forced"])
    return _Piece(accepted, _compute_logprobs(scores, token_ids, likeliest.long(), request.logprobs))


def _compute_logprobs(
    scores: Tensor, token_ids: Tensor, likeliest: Tensor, num_top: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the log-probabilities of these tokens, of the most likely ones, best first, and the ids of those; of equal
    ones the first id first. The sum over the vocabulary is in float64.
    """
    largest = scores.amax(dim=1, keepdim=True)
    norm = largest.double() + (scores - largest).exp().sum(dim=1, keepdim=True, dtype=torch.float64).log()
    if num_top > 1:
        ids = scores.sort(dim=1, descending=True, stable=True).indices[:, :num_top]
    else:
        ids = likeliest[:, None][:, :num_top]
    own = scores.gather(1, token_ids[:, None]).double() - norm
    return own[:, 0], scores.gather(1, ids).double() - norm, ids


def _give_by_pieces(each: Verification, rows: range, pieces: Sequence[_Piece]) -> None:
    """Give a verification the tokens up to the first that is not the draft's."""
    forced, draft, first = each.sampler.request.forced_ids, each.draft, rows.start - each.first_row
    token_ids: list[int] = []
    largest: list[float] = []
    logprobs: list[TokenLogprob] = []
    for piece in pieces:
        found = piece.accepted.to_host()
        chosen, largest_of_rows = found.token_ids.tolist(), found.top_tokens.largest.tolist()
        if piece.logprobs is not None:
            own, likely, ids = (part.tolist() for part in piece.logprobs)
        for row, token_id in enumerate(chosen):
            at = first + len(token_ids)
            position = len(each.output_ids) + at
            token_id = forced[position] if position < len(forced) else token_id
            token_ids.append(token_id)
            largest.append(largest_of_rows[row])
            if piece.logprobs is not None:
                logprobs.append(TokenLogprob(token_id, own[row], tuple(zip(ids[row], likely[row], strict=True))))
            if list(draft[at : at + 1]) != [token_id]:
                break
        else:
            continue
        break
    each.accept(token_ids, largest, [False] * len(token_ids))
    if each.fault is None:
        each.logprobs += logprobs
