"""One kernel for each family of operations; a constexpr picks the operation."""

# ruff: noqa: PLR0912, RET505, PIE808
# Reason: a constexpr picks one of many operations; kernels are written as Triton programmers write them.

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

import triton
import triton.language as tl

MINUS_ZERO = -0.0 if tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 9) else 0.0
"""What the front end makes of a -0.0 written in a kernel."""


@triton.jit
def binary_kernel(x_ptr, y_ptr, out_ptr, num_elements, OPERATION: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < num_elements
    x = tl.load(x_ptr + offsets, mask=mask)
    y = tl.load(y_ptr + offsets, mask=mask, other=1)
    if OPERATION == "add":
        result = x + y
    elif OPERATION == "sub":
        result = x - y
    elif OPERATION == "mul":
        result = x * y
    elif OPERATION == "div":
        result = x / y
    elif OPERATION == "floordiv":
        result = x // y
    elif OPERATION == "mod":
        result = x % y
    elif OPERATION == "and":
        result = x & y
    elif OPERATION == "or":
        result = x | y
    elif OPERATION == "xor":
        result = x ^ y
    elif OPERATION == "shl":
        result = x << y
    elif OPERATION == "shr":
        result = x >> y
    elif OPERATION == "umulhi":
        result = tl.umulhi(x, y)
    elif OPERATION == "max":
        result = tl.maximum(x, y)
    elif OPERATION == "min":
        result = tl.minimum(x, y)
    elif OPERATION == "max_nan":
        result = tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)
    elif OPERATION == "min_nan":
        result = tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)
    elif OPERATION == "eq":
        result = (x == y).to(x.dtype)
    elif OPERATION == "ne":
        result = (x != y).to(x.dtype)
    elif OPERATION == "lt":
        result = (x < y).to(x.dtype)
    elif OPERATION == "le":
        result = (x <= y).to(x.dtype)
    elif OPERATION == "gt":
        result = (x > y).to(x.dtype)
    elif OPERATION == "ge":
        result = (x >= y).to(x.dtype)
    elif OPERATION == "where":
        result = tl.where(x > 0, x, y)
    elif OPERATION == "fma":
        result = tl.fma(x, y, x)
    elif OPERATION == "clamp":
        result = tl.clamp(x, -1.0, 2.0)
    elif OPERATION == "clamp_nan":
        result = tl.clamp(x, -1.0, 2.0, propagate_nan=tl.PropagateNan.ALL)
    elif OPERATION == "div_rn":
        result = tl.div_rn(x, y)
    else:
        tl.static_assert(False, "no such operation")
    tl.store(out_ptr + offsets, result, mask=mask)


@triton.jit
def unary_kernel(x_ptr, out_ptr, num_elements, OPERATION: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < num_elements
    x = tl.load(x_ptr + offsets, mask=mask)
    if OPERATION == "neg":
        result = -x
    elif OPERATION == "abs":
        result = tl.abs(x)
    elif OPERATION == "exp":
        result = tl.exp(x)
    elif OPERATION == "exp2":
        result = tl.exp2(x)
    elif OPERATION == "log":
        result = tl.log(x)
    elif OPERATION == "log2":
        result = tl.log2(x)
    elif OPERATION == "sin":
        result = tl.sin(x)
    elif OPERATION == "cos":
        result = tl.cos(x)
    elif OPERATION == "sqrt":
        result = tl.sqrt(x)
    elif OPERATION == "sqrt_rn":
        result = tl.sqrt_rn(x)
    elif OPERATION == "rsqrt":
        result = tl.rsqrt(x)
    elif OPERATION == "erf":
        result = tl.erf(x)
    elif OPERATION == "floor":
        result = tl.floor(x)
    elif OPERATION == "ceil":
        result = tl.ceil(x)
    elif OPERATION == "invert":
        result = ~x
    else:
        tl.static_assert(False, "no such operation")
    tl.store(out_ptr + offsets, result, mask=mask)


@triton.jit
def cast_kernel(
    x_ptr, out_ptr, num_elements, TO: tl.constexpr, ROUNDING: tl.constexpr, BITCAST: tl.constexpr, BLOCK: tl.constexpr
):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < num_elements
    x = tl.load(x_ptr + offsets, mask=mask)
    if BITCAST:
        result = x.to(TO, bitcast=True)
    elif ROUNDING is None:
        result = x.to(TO)
    else:
        result = x.to(TO, fp_downcast_rounding=ROUNDING)
    tl.store(out_ptr + offsets, result, mask=mask)


@triton.jit
def combine_affine(left_scale, left_shift, right_scale, right_shift):
    return left_scale * right_scale, left_shift * right_scale + right_shift


@triton.jit
def combine_product(left, right):
    return left * right


@triton.jit
def combine_first_clamped(left, right):
    return tl.maximum(left, 2)


@triton.jit
def reduce_kernel(
    x_ptr, out_ptr, OPERATION: tl.constexpr, AXIS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    program = tl.program_id(0)
    rows = tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    x = tl.load(x_ptr + program * ROWS * COLUMNS + rows[:, None] * COLUMNS + columns[None, :])
    if OPERATION == "sum":
        result = tl.sum(x, AXIS)
    elif OPERATION == "max":
        result = tl.max(x, AXIS)
    elif OPERATION == "min":
        result = tl.min(x, AXIS)
    elif OPERATION == "argmax":
        result = tl.argmax(x, AXIS)
    elif OPERATION == "argmin":
        result = tl.argmin(x, AXIS)
    elif OPERATION == "xor":
        result = tl.xor_sum(x, AXIS)
    elif OPERATION == "product":
        result = tl.reduce(x, AXIS, combine_product)
    elif OPERATION == "first_clamped":
        result = tl.reduce(x, AXIS, combine_first_clamped)
    elif OPERATION == "affine":
        _, result = tl.reduce((x, x), AXIS, combine_affine)
    else:
        tl.static_assert(False, "no such operation")
    if AXIS == 0:
        tl.store(out_ptr + program * COLUMNS + columns, result)
    else:
        tl.store(out_ptr + program * ROWS + rows, result)


@triton.jit
def scan_kernel(
    x_ptr, out_ptr, OPERATION: tl.constexpr, AXIS: tl.constexpr, REVERSE: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    rows = tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    offsets = tl.program_id(0) * ROWS * COLUMNS + rows[:, None] * COLUMNS + columns[None, :]
    x = tl.load(x_ptr + offsets)
    if OPERATION == "cumsum":
        result = tl.cumsum(x, AXIS, reverse=REVERSE)
    elif OPERATION == "cumprod":
        result = tl.cumprod(x, AXIS, reverse=REVERSE)
    elif OPERATION == "affine":
        _, result = tl.associative_scan((x, x), AXIS, combine_affine, reverse=REVERSE)
    else:
        tl.static_assert(False, "no such operation")
    tl.store(out_ptr + offsets, result)


@triton.jit
def shape_kernel(x_ptr, out_ptr, OPERATION: tl.constexpr):
    """Rearranges the numbers 0 to 31 of each program."""
    i = tl.arange(0, 32)
    x = tl.load(x_ptr + tl.program_id(0) * 32 + i)
    if OPERATION == "trans":
        result = tl.reshape(tl.trans(tl.reshape(x, (4, 8))), (32,))
    elif OPERATION == "permute":
        result = tl.reshape(tl.permute(tl.reshape(x, (2, 4, 4)), (2, 0, 1)), (32,))
    elif OPERATION == "join":
        even, odd = tl.split(tl.reshape(x, (16, 2)))
        result = tl.reshape(tl.join(odd, even), (32,))
    elif OPERATION == "gather":
        result = tl.gather(x, 31 - i, 0)
    elif OPERATION == "histogram":
        result = tl.histogram(x % 8, 32)
    elif OPERATION == "sort":
        result = tl.sort((x * 7) % 32)
    elif OPERATION == "flip":
        result = tl.flip(x, 0)
    elif OPERATION == "broadcast":
        result = tl.reshape(tl.broadcast_to(tl.reshape(tl.sum(tl.reshape(x, (4, 8)), 1), (4, 1)), (4, 8)), (32,))
    else:
        tl.static_assert(False, "no such operation")
    tl.store(out_ptr + tl.program_id(0) * 32 + i, result)


@triton.jit
def dot_kernel(a_ptr, b_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr):
    m = tl.arange(0, M)
    n = tl.arange(0, N)
    k = tl.arange(0, K)
    program = tl.program_id(0)
    a = tl.load(a_ptr + program * M * K + m[:, None] * K + k[None, :])
    b = tl.load(b_ptr + k[:, None] * N + n[None, :])
    result = tl.dot(a, b, input_precision=PRECISION)
    tl.store(out_ptr + program * M * N + m[:, None] * N + n[None, :], result)


@triton.jit
def atomic_kernel(target_ptr, old_ptr, x_ptr, OPERATION: tl.constexpr, BLOCK: tl.constexpr, SLOTS: tl.constexpr):
    program = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + program * BLOCK + i)
    slot = (program * BLOCK + i) % SLOTS
    mask = i != 3
    if OPERATION == "add":
        old = tl.atomic_add(target_ptr + slot, x, mask=mask)
    elif OPERATION == "max":
        old = tl.atomic_max(target_ptr + slot, x, mask=mask)
    elif OPERATION == "min":
        old = tl.atomic_min(target_ptr + slot, x, mask=mask)
    elif OPERATION == "and":
        old = tl.atomic_and(target_ptr + slot, x, mask=mask)
    elif OPERATION == "or":
        old = tl.atomic_or(target_ptr + slot, x, mask=mask)
    elif OPERATION == "xor":
        old = tl.atomic_xor(target_ptr + slot, x, mask=mask)
    elif OPERATION == "xchg":
        old = tl.atomic_xchg(target_ptr + slot, x, mask=mask)
    else:
        tl.static_assert(False, "no such operation")
    tl.store(old_ptr + program * BLOCK + i, old, mask=mask)


@triton.jit
def lock_kernel(lock_ptr, count_ptr, log_ptr):
    """Each program takes a lock, appends its number to a log, and gives the lock back."""
    while tl.atomic_cas(lock_ptr, 0, 1) == 1:
        pass
    position = tl.load(count_ptr)
    tl.store(log_ptr + position, tl.program_id(0))
    tl.store(count_ptr, position + 1)
    tl.atomic_xchg(lock_ptr, 0)


@triton.jit
def filler_kernel(x_ptr, out_ptr, filler, FORM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Divides 1 by a tile of which a mask lets some elements through: by rows, by prefixes of rows, or every seventh.

    The others are `filler`, or with the form "array" their own numbers.
    """
    rows = tl.arange(0, ROWS)[:, None]
    columns = tl.arange(0, COLUMNS)[None, :]
    offsets = rows * COLUMNS + columns
    if FORM == "rows":
        x = tl.load(x_ptr + offsets, mask=rows % 3 == 1, other=filler)
    elif FORM == "prefixes":
        x = tl.load(x_ptr + offsets, mask=columns < 5, other=filler)
    elif FORM == "scattered":
        x = tl.load(x_ptr + offsets * 2, mask=offsets % 7 == 3, other=filler)
    elif FORM == "prefixes_literal":
        x = tl.load(x_ptr + offsets, mask=columns < 5, other=-0.0)
    elif FORM == "scattered_literal":
        x = tl.load(x_ptr + offsets * 2, mask=offsets % 7 == 3, other=-0.0)
    elif FORM == "array":
        x = tl.load(x_ptr + offsets * 2, mask=offsets % 7 == 3, other=offsets.to(tl.float32))
    else:
        tl.static_assert(False, "no such form")
    tl.store(out_ptr + offsets, 1.0 / x)


@triton.jit
def pick_by_branches(value):
    if value > 6:
        return value * 100
    elif value > 3:
        return value * 10
    return value


@triton.jit
def control_kernel(out_ptr, limits_ptr, OPERATION: tl.constexpr):
    """One number for each program, by divergent control flow; `limits` has one number for each program."""
    program = tl.program_id(0)
    limit = tl.load(limits_ptr + program)
    total = 0
    if OPERATION == "for":
        for i in range(0, limit):
            total += i * program
    elif OPERATION == "nested":
        for i in range(program % 3, limit, 2):
            for j in range(i, limit):
                total += j + i
    elif OPERATION == "negative_step":
        for i in range(limit, 0, -2):
            total = total * 2 + i
    elif OPERATION == "while":
        remaining = limit
        while remaining > 0:
            total += remaining
            remaining -= program + 1
    elif OPERATION == "pointer_while":
        pointer = limits_ptr + program
        remaining = tl.minimum(limit, 9 - program)
        while remaining > 0:
            total += tl.load(pointer)
            pointer += 1
            remaining -= 1
        total = total * 100 + (remaining == 0).to(tl.int32)
    elif OPERATION == "pointer_for":
        pointers = limits_ptr + tl.arange(0, 4) * 0 + program
        for _ in range(tl.minimum(limit, 9 - program)):
            total += tl.sum(tl.load(pointers))
            pointers += 1
    elif OPERATION == "nested_while":
        outer = limit
        while outer > 0:
            inner = outer
            while inner > 1:
                inner = inner // 2
                total += 1
            outer -= 3
    elif OPERATION == "if":
        if limit % 2 == 0:
            total = limit * 3
        else:
            for i in range(0, limit):
                total += tl.load(limits_ptr + i)
    elif OPERATION == "early_return":
        if limit > 4:
            return
        total = limit + 100
        if program == 2:
            return
        total += 1000
    elif OPERATION == "return_in_branch":
        if limit > 4:
            total = 7
            if program % 2 == 0:
                return
            total += limit
        else:
            total = -limit
        total = total * 2
    elif OPERATION == "helper_returns":
        total = pick_by_branches(limit) + pick_by_branches(program)
    elif OPERATION == "store_in_branch":
        if limit > 3:
            tl.store(out_ptr + program, -1)
            return
        total = limit
    else:
        tl.static_assert(False, "no such operation")
    tl.store(out_ptr + program, total)
