"""Kernels with one seeded bug each, and their correct forms, for the tests of the sanitizers."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

import triton
import triton.language as tl


@triton.jit
def table_kernel(
    table_ptr, table_stride, lengths_ptr, out_ptr, PAGE: tl.constexpr, TILE: tl.constexpr, MASKED: tl.constexpr
):
    """Sums the page numbers of a sequence, tile by tile; without the mask the last tile reads past the row."""
    sequence = tl.program_id(0)
    length = tl.load(lengths_ptr + sequence)
    total = 0
    for start in range(0, length, TILE * PAGE):
        slots = start // PAGE + tl.arange(0, TILE)
        used = slots * PAGE < length
        if MASKED:
            pages = tl.load(table_ptr + sequence * table_stride + slots, mask=used, other=0)
        else:
            pages = tl.load(table_ptr + sequence * table_stride + slots)
        total += tl.sum(tl.where(used, pages, 0))
    tl.store(out_ptr + sequence, total)


@triton.jit
def bias_kernel(
    bias_ptr,
    row_stride,
    num_rows,
    num_columns,
    out_ptr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Row sums of a bias matrix that may be a slice; without the row mask it reads past its last row."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_N)
    mask = columns[None, :] < num_columns
    if MASKED:
        mask = mask & (rows[:, None] < num_rows)
    bias = tl.load(bias_ptr + rows[:, None] * row_stride + columns[None, :], mask=mask, other=0.0)
    tl.store(out_ptr + rows, tl.sum(bias, 1), mask=rows < num_rows)


@triton.jit
def split_kernel(
    x_ptr, stride_chunk, stride_row, num_rows, out_ptr, WIDTH: tl.constexpr, X: tl.constexpr, ACROSS: tl.constexpr
):  # fmt: skip
    """Copies 8 rows whose columns lie in runs of X, read as a tile of rows or, ACROSS, of columns; 0.5 where masked."""
    row = tl.program_id(0) * 8 + tl.arange(0, 8)
    column = tl.arange(0, 16)
    used = column < WIDTH
    wanted = row < num_rows
    places = column // X * stride_chunk + column % X
    if ACROSS:
        mask = used[:, None] & wanted[None, :]
        x = tl.trans(tl.load(x_ptr + (row * stride_row)[None, :] + places[:, None], mask=mask, other=0.5))
    else:
        mask = wanted[:, None] & used[None, :]
        x = tl.load(x_ptr + (row * stride_row)[:, None] + places[None, :], mask=mask, other=0.5)
    tl.store(out_ptr + row[:, None] * 16 + column[None, :], x)


@triton.jit
def copy_kernel(
    x_ptr, x_stride, out_ptr, out_stride, HEAD_SIZE: tl.constexpr, PADDED: tl.constexpr, MASKED: tl.constexpr,
    SHIFT: tl.constexpr,
):  # fmt: skip
    """Copies rows of HEAD_SIZE elements; without the mask the padded columns go to the neighbour, as all do
    with a SHIFT."""
    row = tl.program_id(0)
    columns = tl.arange(0, PADDED)
    x = tl.load(x_ptr + row * x_stride + columns, mask=columns < HEAD_SIZE, other=0.0)
    if MASKED:
        tl.store(out_ptr + (row + SHIFT) * out_stride + columns, x, mask=columns < HEAD_SIZE)
    else:
        tl.store(out_ptr + (row + SHIFT) * out_stride + columns, x)


@triton.jit
def partial_kernel(x_ptr, lengths_ptr, partial_ptr, BLOCK: tl.constexpr, SEGMENTS: tl.constexpr):
    """Sums of segments; a segment without elements writes nothing."""
    row = tl.program_id(0)
    segment = tl.program_id(1)
    length = tl.load(lengths_ptr + row)
    if segment * BLOCK >= length:
        return
    offsets = segment * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * SEGMENTS * BLOCK + offsets, mask=offsets < length, other=0.0)
    tl.store(partial_ptr + row * SEGMENTS + segment, tl.sum(x))


@triton.jit
def merge_kernel(partial_ptr, lengths_ptr, out_ptr, BLOCK: tl.constexpr, SEGMENTS: tl.constexpr, MASKED: tl.constexpr):
    """Adds the sums of segments; without the mask, those that were never written too."""
    row = tl.program_id(0)
    segments = tl.arange(0, SEGMENTS)
    length = tl.load(lengths_ptr + row)
    if MASKED:
        partial = tl.load(partial_ptr + row * SEGMENTS + segments, mask=segments * BLOCK < length, other=0.0)
    else:
        partial = tl.load(partial_ptr + row * SEGMENTS + segments)
    tl.store(out_ptr + row, tl.sum(partial))


@triton.jit
def shared_store_kernel(out_ptr, VALUE_DIFFERS: tl.constexpr, BLOCK: tl.constexpr):
    """Every two programs store to the same row: the same values, or not."""
    program = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    value = program if VALUE_DIFFERS else program // 2
    tl.store(out_ptr + (program // 2) * BLOCK + columns, columns * 0 + value)


@triton.jit
def exchange_kernel(x_ptr, num_programs, SHIFT: tl.constexpr):
    """Each program reads its neighbour's element (or its own) and writes its own."""
    program = tl.program_id(0)
    value = tl.load(x_ptr + (program + SHIFT) % num_programs)
    tl.store(x_ptr + program, value + 1)


@triton.jit
def page_kernel(cache_ptr, pages_ptr, out_ptr, PAGE_STRIDE: tl.constexpr, HEAD_SIZE: tl.constexpr, WIDE: tl.constexpr):
    """Reads the head of a page; the offset of a page is a 32-bit product, or a 64-bit one."""
    program = tl.program_id(0)
    page = tl.load(pages_ptr + program)
    if WIDE:
        page = page.to(tl.int64)
    columns = tl.arange(0, HEAD_SIZE)
    values = tl.load(cache_ptr + page * PAGE_STRIDE + columns)
    tl.store(out_ptr + program * HEAD_SIZE + columns, values)


@triton.jit
def stepping_kernel(x_ptr, out_ptr, steps, stride):
    """Walks through a tensor by a stride; the way to the start is a 32-bit product."""
    pointer = x_ptr + (tl.program_id(0) * 65536) * stride
    total = 0.0
    for _ in range(steps):
        total += tl.load(pointer)
        pointer += stride
    tl.store(out_ptr + tl.program_id(0), total)


@triton.jit
def masked_page_kernel(cache_ptr, pages_ptr, out_ptr, limit, PAGE_STRIDE: tl.constexpr, BLOCK: tl.constexpr):
    """Reads the first element of each page below a limit; offsets of the others overflow, but are masked off."""
    rows = tl.arange(0, BLOCK)
    pages = tl.load(pages_ptr + rows)
    values = tl.load(cache_ptr + pages * PAGE_STRIDE, mask=pages < limit, other=0.0)
    tl.store(out_ptr + rows, values)


@triton.jit
def selected_page_kernel(cache_ptr, pages_ptr, out_ptr, limit, PAGE_STRIDE: tl.constexpr, BLOCK: tl.constexpr):
    """Reads the first element of each page below a limit, and of page 0 for the others, whose offsets overflow."""
    rows = tl.arange(0, BLOCK)
    pages = tl.load(pages_ptr + rows)
    offsets = tl.where(pages < limit, pages * PAGE_STRIDE, 0)
    tl.store(out_ptr + rows, tl.load(cache_ptr + offsets))


@triton.jit
def assert_kernel(x_ptr):
    tl.device_assert(tl.load(x_ptr + tl.program_id(0)) > 0, "must be positive")


@triton.jit
def every_few_kernel(in_ptr, out_ptr, STEP: tl.constexpr, SIZE: tl.constexpr):
    offsets = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    columns = offsets[:, None] * 4 + tl.arange(0, 4)[None, :] * 3
    values = tl.load(in_ptr + columns, mask=(columns % STEP) == 0, other=-1.0)
    tl.store(out_ptr + offsets[:, None] * 4 + tl.arange(0, 4)[None, :], values)


@triton.jit
def guarded_row_kernel(x_ptr, out_ptr, tiles, first, limit, BLOCK: tl.constexpr):
    """Sums a row by tiles whose 32-bit places may wrap, under two conditions, one of which is the program's."""
    total = 0.0
    guard = tl.program_id(0) >= first
    for tile in range(tiles):
        place = tile * BLOCK + tl.arange(0, BLOCK)
        total += tl.sum(tl.load(x_ptr + place, mask=guard & (place < limit), other=0.0))
    tl.store(out_ptr + tl.program_id(0), total)


@triton.jit
def endless_kernel(out_ptr, limits_ptr):
    """Counts up to the limit of each program, one by one."""
    limit = tl.load(limits_ptr + tl.program_id(0))
    count = 0
    while count < limit:
        count += 1
    tl.store(out_ptr + tl.program_id(0), count)
