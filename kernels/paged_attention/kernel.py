"""Paged attention in Triton: blocks of packed query heads attend to chunks of their sequence's keys, then chunks are
merged.

A block is ROWS query heads of one KV head. The flat index `token * GROUP + head` is cut, so a group whose size is no
power of two wastes only the end of a sequence. All rows share each load of keys and values. The length of a chunk
follows from that of the sequence, chunks are cut at multiples of it, and tiles at multiples of KEYS, whatever else is
in the batch, so a row's sums are bit for bit those that it has alone (the idea: He and Thinking Machines Lab 2025,
Defeating nondeterminism in LLM inference). A tile that a row does not see adds zeros to it.

A head whose width is no power of two is two parts that are: its first HEAD_DIM numbers, and TAIL numbers behind them
(576 are 512 + 64). Where KEYS_ARE_VALUES, as in latent attention, a tile is read once for both.

Scores are multiplied by log2(e), so the softmax is `exp2` of one fused multiply-add. The merge is that of FlashDecoding
(Dao and others 2023).
"""

import triton
import triton.language as tl

MAX_POSITION = tl.constexpr(2147483647)
"""A position after all others."""


@triton.jit
def _find_block(program, query_starts, num_seqs, GROUP: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr):
    """Return the sequence of a program, and the index of its block in that sequence.

    Sequence i has the blocks from `query_starts[i] * GROUP // ROWS + i` on: as many as it needs, or one more, which is
    empty. Example: for 3 and 5 tokens of 7 heads in blocks of 16, the first sequence begins at block 0 and the second
    at 21 // 16 + 1 = 2.
    """
    num_begun = 0
    for first in range(0, num_seqs, LANES):
        seqs = first + tl.arange(0, LANES)
        starts = tl.load(query_starts + seqs, mask=seqs < num_seqs, other=0)
        begun = (starts * GROUP // ROWS + seqs <= program) & (seqs < num_seqs)
        num_begun += tl.sum(begun.to(tl.int32), axis=0)
    seq = num_begun - 1
    return seq, program - (tl.load(query_starts + seq) * GROUP // ROWS + seq)


@triton.jit
def _choose_block(
    program, query_starts, num_seqs, GROUP: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr,
    ONE_BLOCK: tl.constexpr, ONE_SEQ: tl.constexpr,
):  # fmt: skip
    """As `_find_block`, without a search where sequences have one block each, or there is one sequence."""
    if ONE_BLOCK:
        seq = program
        block = 0
    elif ONE_SEQ:
        seq = program * 0
        block = program
    else:
        seq, block = _find_block(program, query_starts, num_seqs, GROUP, ROWS, LANES)
    return seq, block


@triton.jit
def _load_pages(start, pages, num_places, PAGE_SIZE: tl.constexpr, KEYS: tl.constexpr):
    """Return the pages of a tile's positions, [KEYS]; entries after a sequence's last page are not used."""
    places = start + tl.arange(0, KEYS)
    return tl.load(pages + places // PAGE_SIZE, mask=places < num_places, other=0)


@triton.jit
def _cap_scores(scores, cap):
    """Return cap * tanh(scores / cap); tanh of a size y is (1 - exp(-2 y)) / (1 + exp(-2 y))."""
    power = tl.math.exp2(tl.abs(scores) * (-2.885390081777927 / cap))
    capped = (1.0 - power) / (1.0 + power) * cap
    return tl.where(scores < 0, -capped, capped)


@triton.jit
def _load_scales(at, held, MASKED: tl.constexpr):
    """Return the scales of a tile's keys or values, float32 [KEYS]."""
    if MASKED:
        scales = tl.load(at, mask=held, other=0.0)
    else:
        scales = tl.load(at)
    return scales.to(tl.float32)


@triton.jit
def _load_tile(at, held, MASKED: tl.constexpr):
    """Return a tile of keys or values, [KEYS, the width of `at`]; those that are not held are 0."""
    if MASKED:
        tile = tl.load(at, mask=held[:, None], other=0)
    else:
        tile = tl.load(at)
    return tile


@triton.jit
def _attend_tiles(
    first, last, low, end, page, query, query_tail, top, total, sums, tail_sums, lows, ends,
    keys, values, key_scales, value_scales, kv_head, pages, num_places, scale, cap,
    MASKED: tl.constexpr, WINDOW: tl.constexpr, CAPS: tl.constexpr, PAGE_SIZE: tl.constexpr,
    SLOT_STRIDE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, HEAD_DIM: tl.constexpr, TAIL: tl.constexpr,
    KEYS_ARE_VALUES: tl.constexpr, SCALE_STRIDE: tl.constexpr,
):  # fmt: skip
    """Add the tiles of positions [first, last) to the rows' softmax: maximum score, sum of weights, weighted sum of
    values.

    Without MASKED every row sees all of them. Keys outside of [low, end), which no row sees, are not read. `page` has
    the pages of the first tile's positions; those of the next tile are returned with the softmax. Keys and values in
    int8 have scales, SCALE_STRIDE apart: scores are multiplied by those of keys, and weights by those of values.
    """
    dims = tl.arange(0, HEAD_DIM)
    for start in range(first, last, KEYS):
        places = start + tl.arange(0, KEYS)
        held = places < end
        if WINDOW:
            held &= places >= low
        slots = page.to(tl.int64) * PAGE_SIZE + places % PAGE_SIZE
        at = slots[:, None] * SLOT_STRIDE + dims[None, :]
        # The next tile's pages are loaded now. If addresses depend on a load of their own tile, the compiler keeps only
        # one tile in flight for three stages, and none for two (triton-lang/triton #4721).
        page = _load_pages(start + KEYS, pages, num_places, PAGE_SIZE, KEYS)
        key = _load_tile(keys + at, held, MASKED)
        scores = tl.dot(query, tl.trans(key.to(query.dtype)), input_precision="ieee")
        if TAIL:
            tail_at = slots[:, None] * SLOT_STRIDE + HEAD_DIM + tl.arange(0, TAIL)[None, :]
            key_tail = _load_tile(keys + tail_at, held, MASKED)
            scores = tl.dot(query_tail, tl.trans(key_tail.to(query.dtype)), scores, input_precision="ieee")
        if key_scales is not None:
            scores *= _load_scales(key_scales + slots * SCALE_STRIDE + kv_head, held, MASKED)[None, :]
        if CAPS:
            scores = _cap_scores(scores, cap)
        if MASKED:
            seen = places[None, :] < ends[:, None]
            if WINDOW:
                seen &= places[None, :] >= lows[:, None]
            scores = tl.where(seen, scores, float("-inf"))
        highest = tl.maximum(top, tl.max(scores, axis=1) * scale)
        if MASKED:  # for a row that has seen nothing yet, exp2(-inf - -inf) is NaN
            level = tl.where(highest == float("-inf"), 0.0, highest)
        else:
            level = highest
        shares = tl.math.exp2(scores * scale - level[:, None])
        fading = tl.math.exp2(top - level)
        total = total * fading + tl.sum(shares, axis=1)
        sums = sums * fading[:, None]
        value = key if KEYS_ARE_VALUES else _load_tile(values + at, held, MASKED)
        if value_scales is not None:
            shares *= _load_scales(value_scales + slots * SCALE_STRIDE + kv_head, held, MASKED)[None, :]
        sums = tl.dot(shares.to(query.dtype), value.to(query.dtype), sums, input_precision="ieee")
        if TAIL:
            tail = key_tail if KEYS_ARE_VALUES else _load_tile(values + tail_at, held, MASKED)
            tail_sums = tail_sums * fading[:, None]
            tail_sums = tl.dot(shares.to(query.dtype), tail.to(query.dtype), tail_sums, input_precision="ieee")
        top = highest
    return page, top, total, sums, tail_sums


@triton.jit(do_not_specialize=["num_seqs", "num_tokens", "least_chunk"])
def attention_kernel(
    out, levels, query, keys, values, key_scales, value_scales,
    page_table, page_starts, query_starts, seq_lens, key_ends,
    num_seqs, num_tokens, least_chunk, scale, cap,
    query_stride, query_head_stride,
    SLOT_STRIDE: tl.constexpr, HEAD_STRIDE: tl.constexpr,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, TAIL: tl.constexpr, KEYS_ARE_VALUES: tl.constexpr,
    PAGE_SIZE: tl.constexpr, WINDOW: tl.constexpr, CAPS: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, IS_CUT: tl.constexpr,
    ONE_BLOCK: tl.constexpr, ONE_SEQ: tl.constexpr, LANES: tl.constexpr, SCALE_STRIDE: tl.constexpr,
):  # fmt: skip
    """Attend from one block to one chunk of its keys; the grid is [blocks, KV heads, chunks].

    A sequence has as many chunks as the grid, or fewer: their length is a multiple of `least_chunk`. If keys are not
    cut, `out` [num_tokens, num_heads, head_dim] is the result. Otherwise `out` is a float32 partial
    result for every chunk, [num_chunks, ...], and `levels` [num_chunks, num_tokens, num_heads] is log2 of the sum that
    it was divided by: -inf if a row sees nothing of a chunk, whose partial result is then NaN or not written. WINDOW
    is 0 if unused. Keys and values in int8 have scales in float16: that of a slot's first head is SCALE_STRIDE behind
    that of the slot before. With ONE_BLOCK no sequence has more than one block. Loads come before everything that has
    to wait for others: a program of a short chunk is little more than its first loads.
    """
    program = tl.num_programs(0) - 1 - tl.program_id(0)  # the last rows see the most keys, so they start first
    kv_head = tl.program_id(1)
    seq, block = _choose_block(program, query_starts, num_seqs, GROUP, ROWS, LANES, ONE_BLOCK, ONE_SEQ)
    pages = page_table + tl.load(page_starts + seq)
    num_places = tl.load(seq_lens + seq)
    begin = 0
    if IS_CUT:
        chunk = tl.cdiv(num_places, least_chunk * tl.num_programs(2)) * least_chunk
        begin = tl.program_id(2) * chunk
    if not WINDOW:
        page = _load_pages(begin, pages, num_places, PAGE_SIZE, KEYS)
    start = tl.load(query_starts + seq)
    num_rows = (tl.load(query_starts + seq + 1) - start) * GROUP
    if block * ROWS >= num_rows:
        return

    flat = block * ROWS + tl.arange(0, ROWS)
    is_row = flat < num_rows
    tokens = start + flat // GROUP
    heads = kv_head * GROUP + flat % GROUP
    ends = tl.load(key_ends + tokens, mask=is_row, other=0)
    dims = tl.arange(0, HEAD_DIM)
    query_at = query + tokens.to(tl.int64) * query_stride + heads * query_head_stride
    queries = tl.load(query_at[:, None] + dims[None, :], mask=is_row[:, None], other=0.0)
    query_tails = queries
    tail_sums = 0.0
    if TAIL:
        tail_dims = HEAD_DIM + tl.arange(0, TAIL)
        query_tails = tl.load(query_at[:, None] + tail_dims[None, :], mask=is_row[:, None], other=0.0)
        tail_sums = tl.zeros([ROWS, TAIL], tl.float32)
    lows = tl.zeros_like(ends)
    if WINDOW:
        lows = tl.maximum(ends - WINDOW, 0)
    behind = ends
    if IS_CUT:
        behind = tl.minimum(ends, begin + chunk)
    own_first = tl.maximum(lows, begin)
    sees_some = is_row & (own_first < behind)
    low = tl.min(tl.where(sees_some, own_first, MAX_POSITION), axis=0)
    end = tl.max(tl.where(sees_some, behind, 0), axis=0)

    num_heads = tl.num_programs(1) * GROUP
    at_rows = tokens.to(tl.int64) * num_heads + heads
    if IS_CUT:
        at_rows += tl.program_id(2).to(tl.int64) * num_tokens * num_heads
        if low >= end:
            tl.store(levels + at_rows, tl.full([ROWS], float("-inf"), tl.float32), mask=is_row)
            return

    keys += kv_head * HEAD_STRIDE
    values += kv_head * HEAD_STRIDE
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, HEAD_DIM], tl.float32)

    # Tiles [whole, whole_end) are seen by every row in full, and need no mask.
    whole = begin
    if WINDOW:
        first = low // KEYS * KEYS
        latest = tl.max(tl.where(is_row, own_first, 0), axis=0)
        whole = tl.maximum(first, tl.cdiv(latest, KEYS) * KEYS)
        page = _load_pages(first, pages, num_places, PAGE_SIZE, KEYS)
        page, top, total, sums, tail_sums = _attend_tiles(
            first, tl.minimum(whole, end), low, end, page, queries, query_tails, top, total, sums, tail_sums,
            lows, ends,
            keys, values, key_scales, value_scales, kv_head, pages, num_places, scale, cap,
            True, WINDOW, CAPS, PAGE_SIZE, SLOT_STRIDE, ROWS, KEYS, HEAD_DIM, TAIL,
            KEYS_ARE_VALUES, SCALE_STRIDE,
        )  # fmt: skip
    shortest = tl.min(tl.where(is_row, tl.minimum(ends, behind), MAX_POSITION), axis=0)
    whole_end = tl.maximum(shortest // KEYS * KEYS, whole)
    page, top, total, sums, tail_sums = _attend_tiles(
        whole, whole_end, low, end, page, queries, query_tails, top, total, sums, tail_sums, lows, ends,
        keys, values, key_scales, value_scales, kv_head, pages, num_places, scale, cap,
        False, WINDOW, CAPS, PAGE_SIZE, SLOT_STRIDE, ROWS, KEYS, HEAD_DIM, TAIL,
            KEYS_ARE_VALUES, SCALE_STRIDE,
    )  # fmt: skip
    page, top, total, sums, tail_sums = _attend_tiles(
        whole_end, end, low, end, page, queries, query_tails, top, total, sums, tail_sums, lows, ends,
        keys, values, key_scales, value_scales, kv_head, pages, num_places, scale, cap,
        True, WINDOW, CAPS, PAGE_SIZE, SLOT_STRIDE, ROWS, KEYS, HEAD_DIM, TAIL,
            KEYS_ARE_VALUES, SCALE_STRIDE,
    )  # fmt: skip

    found = total != 0
    attended = sums / tl.where(found, total, float("nan"))[:, None]
    out_at = out + at_rows[:, None] * (HEAD_DIM + TAIL)
    tl.store(out_at + dims[None, :], attended.to(out.dtype.element_ty), mask=is_row[:, None])
    if TAIL:
        attended = tail_sums / tl.where(found, total, float("nan"))[:, None]
        tl.store(out_at + tail_dims[None, :], attended.to(out.dtype.element_ty), mask=is_row[:, None])
    if IS_CUT:
        level = top + tl.math.log2(tl.where(found, total, 1.0))
        tl.store(levels + at_rows, level, mask=is_row)


@triton.jit(do_not_specialize=["num_chunks", "num_rows"])
def merge_chunks_kernel(
    out, shares, levels, num_chunks, num_rows,
    WINDOW: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """Merge the chunks of one query head by the weights in `levels`; the grid is [num_rows].

    `out` is [num_rows, head_dim]; `shares` and `levels` are the outputs of `attention_kernel`. Chunks that a row does
    not see are not read; without a window, none comes after one that it does not see.
    """
    row = tl.program_id(0).to(tl.int64)
    dims = tl.arange(0, BLOCK_DIM)
    is_dim = dims < HEAD_DIM
    top = float("-inf")
    total = 0.0
    sums = tl.zeros([BLOCK_DIM], tl.float32)
    first = 0
    while first < num_chunks:
        chunks = first + tl.arange(0, CHUNKS)
        at = chunks.to(tl.int64) * num_rows + row
        level = tl.load(levels + at, mask=chunks < num_chunks, other=float("-inf"))
        sees = level != float("-inf")
        mask = sees[:, None] & is_dim[None, :]
        share = tl.load(shares + at[:, None] * HEAD_DIM + dims[None, :], mask=mask, other=0.0)
        highest = tl.maximum(top, tl.max(level, axis=0))
        base = tl.where(highest == float("-inf"), 0.0, highest)
        weights = tl.math.exp2(level - base)
        fading = tl.math.exp2(top - base)
        total = total * fading + tl.sum(weights, axis=0)
        sums = sums * fading + tl.sum(weights[:, None] * share, axis=0)
        top = highest
        first += CHUNKS
        if not WINDOW:
            num_chunks = tl.where(tl.min(sees.to(tl.int32), axis=0) == 0, 0, num_chunks)
    attended = sums / tl.where(total != 0, total, float("nan"))
    tl.store(out + row * HEAD_DIM + dims, attended.to(out.dtype.element_ty), mask=is_dim)
