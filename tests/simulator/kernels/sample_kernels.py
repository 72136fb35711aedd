"""Kernels of the kinds that Triton's tutorials teach, and a paged-attention-like one, for the simulator's tests."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

import triton
import triton.language as tl


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, num_elements, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < num_elements
    x = tl.load(x_ptr + offsets, mask=mask)
    y = tl.load(y_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, x + y, mask=mask)


@triton.jit
def apply_kernel(x_ptr, out_ptr, FUNCTION: tl.constexpr):
    """Apply any function to one number."""
    tl.store(out_ptr, FUNCTION(tl.load(x_ptr)))


@triton.jit
def softmax_kernel(x_ptr, x_stride, out_ptr, out_stride, num_columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    mask = columns < num_columns
    x = tl.load(x_ptr + row * x_stride + columns, mask=mask, other=-float("inf")).to(tl.float32)
    numerator = tl.exp(x - tl.max(x, axis=0))
    result = numerator / tl.sum(numerator, axis=0)
    tl.store(out_ptr + row * out_stride + columns, result.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def layer_norm_kernel(x_ptr, x_stride, weight_ptr, bias_ptr, out_ptr, num_columns, epsilon, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    x_row = x_ptr + row * x_stride
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, num_columns, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        total += tl.load(x_row + columns, mask=columns < num_columns, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / num_columns
    squares = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, num_columns, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        x = tl.load(x_row + columns, mask=columns < num_columns, other=0.0).to(tl.float32)
        centred = tl.where(columns < num_columns, x - mean, 0.0)
        squares += centred * centred
    scale = 1 / tl.sqrt(tl.sum(squares, axis=0) / num_columns + epsilon)
    for start in range(0, num_columns, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        mask = columns < num_columns
        weight = tl.load(weight_ptr + columns, mask=mask)
        bias = tl.load(bias_ptr + columns, mask=mask)
        x = tl.load(x_row + columns, mask=mask, other=0.0).to(tl.float32)
        tl.store(out_ptr + row * x_stride + columns, (x - mean) * scale * weight + bias, mask=mask)


@triton.jit
def matmul_kernel(
    a_ptr, a_stride_m, a_stride_k, b_ptr, b_stride_k, b_stride_n, c_ptr, c_stride_m, c_stride_n, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    num_blocks_m = tl.cdiv(M, BLOCK_M)
    num_blocks_n = tl.cdiv(N, BLOCK_N)
    group_width = GROUP_M * num_blocks_n
    first_m = (program // group_width) * GROUP_M
    group_height = min(num_blocks_m - first_m, GROUP_M)
    block_m = first_m + (program % group_width) % group_height
    block_n = (program % group_width) // group_height
    rows = (block_m * BLOCK_M + tl.arange(0, BLOCK_M)) % M
    columns = (block_n * BLOCK_N + tl.arange(0, BLOCK_N)) % N
    inner = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + rows[:, None] * a_stride_m + inner[None, :] * a_stride_k
    b_ptrs = b_ptr + inner[:, None] * b_stride_k + columns[None, :] * b_stride_n
    accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in range(tl.cdiv(K, BLOCK_K)):
        a = tl.load(a_ptrs, mask=inner[None, :] < K - step * BLOCK_K, other=0.0)
        b = tl.load(b_ptrs, mask=inner[:, None] < K - step * BLOCK_K, other=0.0)
        accumulator = tl.dot(a, b, accumulator, input_precision="ieee")
        a_ptrs += BLOCK_K * a_stride_k
        b_ptrs += BLOCK_K * b_stride_k
    c_rows = block_m * BLOCK_M + tl.arange(0, BLOCK_M)
    c_columns = block_n * BLOCK_N + tl.arange(0, BLOCK_N)
    c_ptrs = c_ptr + c_rows[:, None] * c_stride_m + c_columns[None, :] * c_stride_n
    mask = (c_rows[:, None] < M) & (c_columns[None, :] < N)
    tl.store(c_ptrs, accumulator.to(c_ptr.dtype.element_ty), mask=mask)


@triton.jit
def flash_attention_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, scale, stride_head, stride_token, length,
    HEAD_SIZE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    rows = block * BLOCK_M + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, HEAD_SIZE)
    q_offsets = head * stride_head + rows[:, None] * stride_token + dims[None, :]
    q = tl.load(q_ptr + q_offsets, mask=rows[:, None] < length, other=0.0)
    row_max = tl.full([BLOCK_M], -float("inf"), dtype=tl.float32)
    row_sum = tl.zeros([BLOCK_M], dtype=tl.float32)
    accumulator = tl.zeros([BLOCK_M, HEAD_SIZE], dtype=tl.float32)
    end = tl.minimum((block + 1) * BLOCK_M, length) if CAUSAL else length
    for start in range(0, end, BLOCK_N):
        columns = start + tl.arange(0, BLOCK_N)
        kv_offsets = head * stride_head + columns[:, None] * stride_token + dims[None, :]
        k = tl.load(k_ptr + kv_offsets, mask=columns[:, None] < length, other=0.0)
        v = tl.load(v_ptr + kv_offsets, mask=columns[:, None] < length, other=0.0)
        visible = columns[None, :] < length
        if CAUSAL:
            visible = visible & (columns[None, :] <= rows[:, None])
        scores = tl.where(visible, tl.dot(q, tl.trans(k), input_precision="ieee") * scale, -float("inf"))
        new_max = tl.maximum(row_max, tl.max(scores, axis=1))
        safe_max = tl.where(new_max == -float("inf"), 0.0, new_max)
        weights = tl.exp2((scores - safe_max[:, None]) * 1.4426950408889634)
        alpha = tl.exp2((row_max - safe_max) * 1.4426950408889634)
        row_sum = row_sum * alpha + tl.sum(weights, axis=1)
        accumulator = accumulator * alpha[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        row_max = new_max
    result = accumulator / row_sum[:, None]
    tl.store(out_ptr + q_offsets, result.to(out_ptr.dtype.element_ty), mask=rows[:, None] < length)


@triton.jit
def find_sequence(starts_ptr, token, num_sequences):
    low = 0
    high = num_sequences
    while low < high:
        middle = (low + high) // 2
        if tl.load(starts_ptr + middle) <= token:
            low = middle + 1
        else:
            high = middle
    return low - 1


@triton.jit
def paged_attention_kernel(
    out_ptr, q_ptr, k_cache_ptr, v_cache_ptr, table_ptr, lengths_ptr, starts_ptr, scale, k_scale_ptr,
    num_sequences, table_stride: tl.int64, q_stride_token: tl.int64, q_stride_head: tl.int64,
    cache_stride_page: tl.int64, cache_stride_slot: tl.int64, cache_stride_head: tl.int64,
    HEAD_SIZE: tl.constexpr, HEAD_SIZE_PADDED: tl.constexpr, PAGE: tl.constexpr, TILE: tl.constexpr,
    GROUP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_Q: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr,
):  # fmt: skip
    q_block = tl.program_id(0)
    kv_head = tl.program_id(1)
    low = 0
    high = num_sequences
    while low < high:
        middle = (low + high) // 2
        if tl.load(starts_ptr + middle) // BLOCK_Q + middle <= q_block:
            low = middle + 1
        else:
            high = middle
    sequence = low - 1
    start = tl.load(starts_ptr + sequence)
    query_len = tl.load(starts_ptr + sequence + 1) - start
    local_block = q_block - (start // BLOCK_Q + sequence)
    if local_block * BLOCK_Q >= query_len:
        return
    lanes = tl.arange(0, BLOCK_M)
    query = local_block * BLOCK_Q + lanes // GROUP
    head = kv_head * GROUP + lanes % GROUP
    dims = tl.arange(0, HEAD_SIZE_PADDED)
    dim_mask = dims < HEAD_SIZE
    row_mask = (query < query_len) & (lanes < BLOCK_Q * GROUP)
    q_offsets = (start + query)[:, None] * q_stride_token + head[:, None] * q_stride_head + dims[None, :]
    q = tl.load(q_ptr + q_offsets, mask=row_mask[:, None] & dim_mask[None, :], other=0.0)
    length = tl.load(lengths_ptr + sequence)
    context = length - query_len
    row_max = tl.full([BLOCK_M], -float("inf"), dtype=tl.float32)
    row_sum = tl.full([BLOCK_M], 1.0, dtype=tl.float32)
    accumulator = tl.zeros([BLOCK_M, HEAD_SIZE_PADDED], dtype=tl.float32)
    last = tl.minimum(context + local_block * BLOCK_Q + (BLOCK_M - 1) // GROUP + 1, length)
    k_scale = tl.load(k_scale_ptr)
    for tile in range(tl.cdiv(last, TILE)):
        key = tile * TILE + tl.arange(0, TILE)
        tile_mask = key < last
        page = tl.load(table_ptr + sequence * table_stride + key // PAGE, mask=tile_mask, other=0).to(tl.int64)
        base = page * cache_stride_page + kv_head * cache_stride_head + (key % PAGE) * cache_stride_slot
        k = tl.load(k_cache_ptr + base[None, :] + dims[:, None], mask=dim_mask[:, None] & tile_mask[None, :], other=0.0)
        v = tl.load(v_cache_ptr + base[:, None] + dims[None, :], mask=dim_mask[None, :] & tile_mask[:, None], other=0.0)
        if k.dtype.is_fp8() and not q.dtype.is_fp8():
            k = (k.to(tl.float32) * k_scale).to(q.dtype)
            v = (v.to(tl.float32) * k_scale).to(q.dtype)
        visible = key[None, :] <= context + query[:, None]
        if WINDOW > 0:
            visible = visible & (context + query[:, None] - key[None, :] < WINDOW)
        scores = scale * tl.dot(q, k, input_precision="ieee")
        if SOFTCAP > 0:
            ratio = tl.exp2(-2 * 1.4426950408889634 * tl.abs(scores / SOFTCAP))
            magnitude = (1 - ratio) / (1 + ratio)
            scores = SOFTCAP * tl.where(scores < 0, -magnitude, magnitude)
        scores = tl.where(visible & row_mask[:, None], scores, -float("inf"))
        new_max = tl.maximum(row_max, tl.max(scores, axis=1))
        new_max = tl.where(new_max > -float("inf"), new_max, 0.0)
        weights = tl.exp(scores - new_max[:, None])
        alpha = tl.exp(row_max - new_max)
        accumulator = accumulator * alpha[:, None]
        row_sum = row_sum * alpha + tl.sum(weights, axis=1)
        row_max = new_max
        accumulator += tl.dot(weights.to(v.dtype), v, input_precision="ieee")
    result = accumulator / row_sum[:, None]
    tl.store(out_ptr + q_offsets, result.to(out_ptr.dtype.element_ty), mask=row_mask[:, None] & dim_mask[None, :])


@triton.jit
def misspelt_kernel(x_ptr):
    """An undefined name in the middle of an expression."""
    tl.store(x_ptr, tl.load(x_ptr + offest) + 1)  # type: ignore[name-defined]  # noqa: F821 - the point of it
