"""Kernels with what published kernels use and this project's do not."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

import triton
import triton.language as tl


@triton.jit
def negated_flag_kernel(x_ptr, out_ptr, flag, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    keep = not flag
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=(offsets < BLOCK - 3) & keep, other=-1.0))


@triton.jit
def scalar_choice_kernel(x_ptr, y_ptr, out_ptr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x, y = tl.load(x_ptr + offsets), tl.load(y_ptr + offsets)
    tl.store(out_ptr + offsets, x if tl.program_id(0) % 3 == 1 else y)


@triton.jit
def dependent_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.extra.cuda.gdc_wait()
    x = tl.load(x_ptr + offsets)
    tl.extra.cuda.gdc_launch_dependents()
    tl.store(out_ptr + offsets, x + 1)


@triton.jit
def assembled_wait_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.inline_asm_elementwise("griddepcontrol.wait; // dummy $0", "=r", [], dtype=tl.int32, is_pure=False, pack=1)
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets) + 1)


@triton.jit
def address_kernel(x_ptr, out_ptr, aligned_ptr, stride, BLOCK: tl.constexpr):
    """Store the distance in bytes of each element from its program's first one, and how that one is aligned."""
    program = tl.program_id(0)
    row_ptr = x_ptr + program * stride
    offsets = tl.arange(0, BLOCK)
    for step in range(2):
        bytes_from_row = (row_ptr + offsets * step).to(tl.int64) - row_ptr.to(tl.int64)
        tl.store(out_ptr + (program * 2 + step) * BLOCK + offsets, bytes_from_row)
    tl.store(aligned_ptr + program, row_ptr.to(tl.int64) % 16)


@triton.jit
def first_address_kernel(x_ptr, out_ptr):
    tl.store(out_ptr, x_ptr.to(tl.int64))


@triton.jit
def other_pointer_kernel(x_ptr, out_ptr):
    tl.store(out_ptr, tl.load(x_ptr.to(tl.pointer_type(tl.int32))))


@triton.jit
def wider_pointer_kernel(x_ptr, out_ptr):
    tl.store(out_ptr, tl.load(x_ptr.to(tl.pointer_type(tl.int64))))


@triton.jit
def address_from_table_kernel(table_ptr, out_ptr):
    pointer = tl.load(table_ptr).to(tl.pointer_type(tl.float32))
    tl.store(out_ptr, tl.load(pointer))


@triton.jit
def descriptor_kernel(x_ptr, out_ptr, num_rows, num_columns, stride, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Double a matrix, tile by tile."""
    x = tl.make_tensor_descriptor(x_ptr, [num_rows, num_columns], [stride, 1], [ROWS, COLUMNS])
    out = tl.make_tensor_descriptor(out_ptr, [num_rows, num_columns], [stride, 1], [ROWS, COLUMNS])
    row = tl.program_id(0) * ROWS
    for column in range(0, num_columns, COLUMNS):
        out.store([row, column], x.load([row, column]) * 2)


@triton.jit
def shifted_descriptor_kernel(x_ptr, out_ptr, num_columns, row, column, SIZE: tl.constexpr):
    """Store a tile that begins before the first element or ends behind the last one, with what is read for these."""
    x = tl.make_tensor_descriptor(x_ptr, [SIZE, num_columns], [num_columns, 1], [SIZE, SIZE])
    columns = tl.arange(0, SIZE)
    tile = x.load([row, column])
    tl.store(out_ptr + columns[:, None] * SIZE + columns[None, :], tile)


@triton.jit
def chosen_descriptor_kernel(x_ptr, out_ptr, num_rows, num_columns, SIZE: tl.constexpr):
    """Sum a descriptor's tiles, which an `if` makes and a loop changes."""
    if num_columns > SIZE:
        x = tl.make_tensor_descriptor(x_ptr, [num_rows, num_columns], [num_columns, 1], [SIZE, SIZE])
    else:
        x = tl.make_tensor_descriptor(x_ptr, [num_rows // 2, num_columns], [num_columns, 1], [SIZE, SIZE])
    total = tl.zeros([SIZE, SIZE], tl.float32)
    for column in range(0, num_columns, SIZE):
        total += x.load([0, column])
        x = tl.make_tensor_descriptor(x_ptr, [num_rows, num_columns - 1], [num_columns, 1], [SIZE, SIZE])
    places = tl.arange(0, SIZE)
    tl.store(out_ptr + places[:, None] * SIZE + places[None, :], total)


@triton.jit
def batched_descriptor_kernel(x_ptr, out_ptr, num_rows, stride, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    x = tl.make_tensor_descriptor(x_ptr, [2, num_rows, COLUMNS], [stride, COLUMNS, 1], [1, ROWS, COLUMNS])
    tile = x.load([tl.program_id(0), 1, 0]).reshape(ROWS, COLUMNS)
    places = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    tl.store(out_ptr + tl.program_id(0) * ROWS * COLUMNS + places, tile)


@triton.jit
def given_descriptor_kernel(x, out, factor, ROWS: tl.constexpr):
    row = tl.program_id(0) * ROWS
    out.store([row, 0], x.load([row, 0]) * factor)
