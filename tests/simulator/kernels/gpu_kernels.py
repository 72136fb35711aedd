"""Kernels with one defect each that shows on a GPU only, and their correct forms, for the tests of the sanitizers."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

import triton
import triton.language as tl


@triton.jit
def reversed_kernel(
    x_ptr, scratch_ptr, out_ptr, BLOCK: tl.constexpr, SHIFT: tl.constexpr, BETWEEN: tl.constexpr
):  # fmt: skip
    """Copies a block through scratch, rotated by SHIFT; BETWEEN names what is between the store and the load."""
    block = tl.program_id(0) * BLOCK
    columns = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + block + columns)
    tl.store(scratch_ptr + block + columns, x)
    if BETWEEN == "barrier":
        tl.debug_barrier()
    if BETWEEN == "sum":
        tl.store(out_ptr + block, tl.sum(x))
    places = (columns + SHIFT) % BLOCK
    tl.store(out_ptr + block + columns, tl.load(scratch_ptr + block + places) * 2)


@triton.jit
def doubling_kernel(x_ptr, STEPS: tl.constexpr, BLOCK: tl.constexpr, BARRIERS: tl.constexpr):
    """Adds to each element the one half a block further on, several times; each step loads what others stored."""
    columns = tl.arange(0, BLOCK)
    for _ in range(STEPS):
        total = tl.load(x_ptr + columns) + tl.load(x_ptr + (columns + BLOCK // 2) % BLOCK)
        if BARRIERS:
            tl.debug_barrier()
        tl.store(x_ptr + columns, total)
        if BARRIERS:
            tl.debug_barrier()


@triton.jit
def transposed_kernel(
    x_ptr, scratch_ptr, out_ptr, SIZE: tl.constexpr, FIRST: tl.constexpr, ROW: tl.constexpr, COLUMN: tl.constexpr
):
    """Stores a square tile and loads it again with other strides."""
    rows = tl.arange(0, SIZE)[:, None]
    columns = tl.arange(0, SIZE)[None, :]
    tl.store(scratch_ptr + rows * SIZE + columns, tl.load(x_ptr + rows * SIZE + columns))
    again = tl.load(scratch_ptr + FIRST + rows * ROW + columns * COLUMN)
    tl.store(out_ptr + rows * SIZE + columns, again)


@triton.jit
def grouped_store_kernel(x_ptr, out_ptr, GROUP: tl.constexpr, BLOCK: tl.constexpr):
    """Stores each GROUP elements to one place."""
    columns = tl.arange(0, BLOCK)
    tl.store(out_ptr + columns // GROUP, tl.load(x_ptr + columns))


@triton.jit
def row_store_kernel(x_ptr, out_ptr, stride, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Stores rows of COLUMNS elements, which overlap where the stride is smaller."""
    rows = tl.arange(0, ROWS)[:, None]
    columns = tl.arange(0, COLUMNS)[None, :]
    x = tl.load(x_ptr + tl.program_id(0) * ROWS * COLUMNS + rows * COLUMNS + columns)
    tl.store(out_ptr + tl.program_id(0) * ROWS * COLUMNS + rows * stride + columns, x)


@triton.jit
def multiple_kernel(x_ptr, starts_ptr, out_ptr):
    """Copies 16 elements from a place that is said to be a multiple of 16."""
    start = tl.multiple_of(tl.load(starts_ptr + tl.program_id(0)), 16)
    columns = tl.arange(0, 16)
    tl.store(out_ptr + tl.program_id(0) * 16 + columns, tl.load(x_ptr + start + columns))


@triton.jit
def contiguous_kernel(x_ptr, size, out_ptr, BLOCK: tl.constexpr):
    """Copies blocks of a ring of a size, which are said to be contiguous and to start at multiples of the block."""
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ring = tl.max_contiguous(tl.multiple_of(places % size, BLOCK), BLOCK)
    tl.store(out_ptr + places, tl.load(x_ptr + ring))


@triton.jit
def clamped_rows_kernel(x_ptr, size, stride, out_ptr):
    """Loads rows, 0 in place of those past the end, which are said to be contiguous, as in Triton's matmul tutorial."""
    rows = tl.arange(0, 16)
    clamped = tl.max_contiguous(tl.where(rows < size, rows, 0), 16)
    tl.store(out_ptr + rows, tl.load(x_ptr + clamped * stride))


@triton.jit
def constant_kernel(x_ptr, group, out_ptr):
    """Loads elements that are said to be the same for each four."""
    columns = tl.arange(0, 16)
    places = tl.max_constancy(columns // group, 4)
    tl.store(out_ptr + columns, tl.load(x_ptr + places))


@triton.jit
def tile_hint_kernel(x_ptr, stride, out_ptr):
    """Copies a tile whose rows are said to start at multiples of 16."""
    rows = tl.arange(0, 8)[:, None]
    columns = tl.arange(0, 16)[None, :]
    places = tl.max_contiguous(tl.multiple_of(rows * stride + columns, (16, 1)), (1, 16))
    tl.store(out_ptr + rows * 16 + columns, tl.load(x_ptr + places))


@triton.jit
def row_hint_kernel(x_ptr, stride, out_ptr):
    """Copies rows whose starts, as 64-bit sums, are said to be multiples of 16 each."""
    rows = (tl.program_id(0) * 8).to(tl.int64) + tl.arange(0, 8)
    starts = tl.multiple_of(rows * stride + stride, 16)
    columns = tl.arange(0, 16)[None, :]
    x = tl.load(x_ptr + starts[:, None] + columns)
    tl.store(out_ptr + rows[:, None] * 16 + columns, x)


@triton.jit
def sum_hint_kernel(x_ptr, start, out_ptr):
    """Copies 16 elements from a place on, whose numbers are said to start at a multiple of 16."""
    places = tl.multiple_of((tl.program_id(0) * 16).to(tl.int64) + start + tl.arange(0, 16), 16)
    tl.store(out_ptr + tl.program_id(0) * 16 + tl.arange(0, 16), tl.load(x_ptr + places))


@triton.jit
def pointer_hint_kernel(x_ptr, stride, out_ptr):
    """Copies every few elements, whose addresses are said to be multiples of 16 bytes."""
    columns = tl.arange(0, 8)
    pointers = tl.multiple_of(x_ptr + columns * stride, 16)
    tl.store(out_ptr + columns, tl.load(pointers))


@triton.jit
def carried_hint_kernel(x_ptr, step, steps, out_ptr):
    """Adds blocks of 16 elements, whose starts are said to be multiples of 16."""
    place = 0
    total = tl.zeros((16,), tl.float32)
    for _ in range(steps):
        place = tl.multiple_of(place, 16)
        total += tl.load(x_ptr + place + tl.arange(0, 16))
        place += step
    tl.store(out_ptr + tl.arange(0, 16), total)


@triton.jit
def mask_hint_kernel(out_ptr, size):
    """Stores to the first elements, whose number is said to be a multiple of 8."""
    columns = tl.arange(0, 32)
    mask = tl.max_constancy(columns < size, 8)
    tl.store(out_ptr + columns, 1.0, mask=mask)


@triton.jit
def masked_hint_kernel(x_ptr, places_ptr, limit, out_ptr):
    """Loads elements whose places are said to be even; those from a limit on are not loaded."""
    columns = tl.arange(0, 8)
    places = tl.multiple_of(tl.load(places_ptr + columns), 2)
    tl.store(out_ptr + columns, tl.load(x_ptr + places, mask=columns < limit, other=0.0))


@triton.jit
def assume_kernel(sizes_ptr, out_ptr):
    """Stores the size of each program, which is said to be a multiple of 8 where it is not 0."""
    size = tl.load(sizes_ptr + tl.program_id(0))
    if size != 0:
        tl.assume(size % 8 == 0)
        tl.store(out_ptr + tl.program_id(0), size)


@triton.jit
def hinted_constant_kernel(x_ptr, out_ptr):
    """Starts at a number with a hint, which Triton writes into the operation of the number."""
    start = tl.multiple_of(tl.full((), 16, tl.int32), 16)
    columns = tl.arange(0, 16)
    tl.store(out_ptr + columns, tl.load(x_ptr + start + columns))


@triton.jit
def quotient_kernel(divisors_ptr, out_ptr, limit, OPERATION: tl.constexpr):
    """Stores 100 divided or shifted by each number, where its place is below a limit."""
    columns = tl.arange(0, 8)
    number = tl.load(divisors_ptr + columns)
    if OPERATION == "divide":
        result = 100 // number
    elif OPERATION == "remainder":
        result = 100 % number
    elif OPERATION == "smallest":
        result = -2147483648 // number
    elif OPERATION == "left":
        result = columns << number
    else:
        result = -100 >> number
    tl.store(out_ptr + columns, result, mask=columns < limit)


@triton.jit
def selected_quotient_kernel(divisors_ptr, out_ptr):
    """Stores quotients, and 7 where the divisor is 0."""
    columns = tl.arange(0, 8)
    divisor = tl.load(divisors_ptr + columns)
    tl.store(out_ptr + columns, tl.where(divisor == 0, 7, 100 // divisor))


@triton.jit
def quotient_address_kernel(x_ptr, divisor, limit, out_ptr):
    """Loads elements at remainders of a division, where the place is below a limit."""
    columns = tl.arange(0, 8)
    x = tl.load(x_ptr + columns % divisor, mask=columns < limit, other=0.0)
    tl.store(out_ptr + columns, x)


@triton.jit
def quotient_branch_kernel(size, divisor, out_ptr):
    """Counts a launch if a quotient is large."""
    if size // divisor > 3:
        tl.store(out_ptr, tl.load(out_ptr) + 1)


@triton.jit
def counting_kernel(size, divisor, out_ptr):
    """Counts each launch; a quotient is stored only where the divisor is not 0."""
    tl.store(out_ptr, tl.load(out_ptr) + 1)
    tl.store(out_ptr + 1, size // divisor, mask=divisor != 0)
