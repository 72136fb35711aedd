"""One kernel for each family of operations; a constexpr picks the operation."""

# ruff: noqa: PLR0912, RET505, PIE808
# Reason: a constexpr picks one of many operations; kernels are written as Triton programmers write them.

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Reason: Triton reads the annotations of a jit function, so only constexprs may carry one.

import triton
import triton.language as tl
from triton.language.extra import libdevice

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


@triton.jit
def assembly_kernel(x_ptr, y_ptr, out_ptr, num_elements, OPERATION: tl.constexpr, BLOCK: tl.constexpr):
    """Computes elements by instructions of the GPU, of one or two operands of one type."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < num_elements
    x = tl.load(x_ptr + offsets, mask=mask)
    y = tl.load(y_ptr + offsets, mask=mask)
    if OPERATION == "add":
        result = tl.inline_asm_elementwise("add.rn.f32 $0, $1, $2;", "=f,f,f", [x, y], tl.float32, True, 1)
    elif OPERATION == "mul":
        result = tl.inline_asm_elementwise("mul.rn.f32 $0, $1, $2;", "=r,r,r", [x, y], tl.float32, True, 1)
    elif OPERATION == "add_ftz":
        result = tl.inline_asm_elementwise("add.ftz.f32 $0, $1, $2;", "=f, f, f", [x, y], tl.float32, True, 1)
    elif OPERATION == "div":
        result = tl.inline_asm_elementwise("div.rn.f32 $0, $1, $2;", "=r,r,r", [x, y], tl.float32, True, 1)
    elif OPERATION == "fma":
        result = tl.inline_asm_elementwise("fma.rn.f32 $0, $1, $2, $1;", "=f,f,f", [x, y], tl.float32, True, 1)
    elif OPERATION == "fma_bf16":
        FMA_BF16: tl.constexpr = "fma.rn.bf16x2 $0, $1, $2, $1;"
        result = tl.inline_asm_elementwise(FMA_BF16, "=r,r,r", [x, y], tl.bfloat16, True, 2)
    elif OPERATION == "exp2":
        result = tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)
    elif OPERATION == "tanh":
        result = tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)
    elif OPERATION == "reciprocal":
        result = tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)
    elif OPERATION == "rsqrt":
        result = tl.inline_asm_elementwise("rsqrt.approx.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)
    elif OPERATION == "e4m3":
        E4M3: tl.constexpr = "cvt.rn.satfinite.e4m3x2.f32 $0, $2, $1;"
        result = tl.inline_asm_elementwise(E4M3, "=h,f,f", [x], tl.float8e4nv, True, 2)
    elif OPERATION == "e4m3_of_four":
        E4M3_OF_FOUR: tl.constexpr = """{
            .reg .b16 lower, upper;  // two elements each
            cvt.rn.satfinite.e4m3x2.f32 lower, $2, $1;
            cvt.rn.satfinite.e4m3x2.f32 upper, $4, $3;
            mov.b32 $0, {lower, upper};
        }"""
        result = tl.inline_asm_elementwise(E4M3_OF_FOUR, "=r,f,f,f,f", [x], tl.float8e4nv, True, 4)
    elif OPERATION == "widen_e4m3":
        WIDEN_E4M3: tl.constexpr = "cvt.rn.f16x2.e4m3x2 $0, $1;"
        result = tl.inline_asm_elementwise(WIDEN_E4M3, "=r,h", [x], tl.float16, True, 2)
    elif OPERATION == "e2m1":
        E2M1: tl.constexpr = """{
            .reg .b8 pair;
            cvt.rn.satfinite.e2m1x2.f32 pair, $2, $1;
            cvt.u32.u8 $0, pair;
        }"""
        result = tl.inline_asm_elementwise(E2M1, "=r,f,f", [x, y], tl.uint8, True, 1)
    elif OPERATION == "bf16_pair":
        BF16_PAIR: tl.constexpr = "cvt.rn.bf16x2.f32 $0, $2, $1;"
        result = tl.inline_asm_elementwise(BF16_PAIR, "=r,f,f", [x], tl.bfloat16, True, 2)
    elif OPERATION == "round":
        result = tl.inline_asm_elementwise("cvt.rni.s32.f32 $0, $1;", "=r,f", [x], tl.int32, True, 1)
    elif OPERATION == "majority":
        result = tl.inline_asm_elementwise("lop3.b32 $0, $1, $2, 255, 0xe8;", "=r,r,r", [x, y], tl.int32, True, 1)
    elif OPERATION == "bytes":
        result = tl.inline_asm_elementwise("prmt.b32 $0, $1, $2, 0x5c10;", "=r,r,r", [x, y], tl.int32, True, 1)
    elif OPERATION == "larger":
        LARGER: tl.constexpr = "{ .reg .pred more; setp.gt.s32 more, $1, $2; selp.b32 $0, $1, $2, more; }"
        result = tl.inline_asm_elementwise(LARGER, "=r,r,r", [x, y], tl.int32, True, 1)
    elif OPERATION == "shift":
        SHIFT: tl.constexpr = "{ .reg .b32 t<2>; shl.b32 t0, $1, 3; shr.u32 t1, $2, 29; or.b32 $0, t0, t1; }"
        result = tl.inline_asm_elementwise(SHIFT, "=r,r,r", [x, y], tl.int32, True, 1)
    else:
        tl.static_assert(False, "no such operation")
    tl.store(out_ptr + offsets, result, mask=mask)


@triton.jit
def any_assembly_kernel(x_ptr, out_ptr, TEXT: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets)
    tl.store(out_ptr + offsets, tl.inline_asm_elementwise(TEXT, "=r,r", [x], dtype=tl.int32, is_pure=True, pack=1))


@triton.jit
def mixed_assembly_kernel(x_ptr, out_ptr, steps):
    """Adds numbers that are the same in all programs to rows, in a loop, and doubles odd rows."""
    program = tl.program_id(0)
    columns = tl.arange(0, 8)
    x = tl.load(x_ptr + program * 8 + columns)
    two = tl.inline_asm_elementwise("mov.b32 $0, 0f40000000;", "=f", [], tl.float32, True, 1)
    for step in range(steps + program):
        x = tl.inline_asm_elementwise("add.f32 $0, $1, $2;", "=f,f,f", [x, columns + step * 1.0], tl.float32, True, 1)
    if program % 2 == 1:
        x = tl.inline_asm_elementwise("mul.f32 $0, $1, $2;", "=f,f,f", [x, two], tl.float32, True, 1)
    place = tl.inline_asm_elementwise("mad.lo.s32 $0, $1, 8, $2;", "=r,r,r", [program, columns], tl.int32, True, 1)
    tl.store(out_ptr + place, x)


@triton.jit
def clock_kernel(out_ptr):
    """Stores two times, one after the other, and the number of the program's processor."""
    program = tl.program_id(0)
    tl.store(out_ptr + program * 3, tl.extra.cuda.globaltimer())
    tl.store(out_ptr + program * 3 + 1, tl.extra.cuda.globaltimer())
    tl.store(out_ptr + program * 3 + 2, tl.extra.cuda.smid())


@triton.jit
def library_kernel(x_ptr, y_ptr, out_ptr, num_elements, OPERATION: tl.constexpr, BLOCK: tl.constexpr):
    """Computes elements by functions of CUDA's library."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < num_elements
    x = tl.load(x_ptr + offsets, mask=mask)
    y = tl.load(y_ptr + offsets, mask=mask)
    if OPERATION == "fast_expf":
        result = libdevice.fast_expf(x)
    elif OPERATION == "fast_dividef":
        result = libdevice.fast_dividef(x, y)
    elif OPERATION == "fast_logf":
        result = libdevice.fast_logf(x)
    elif OPERATION == "pow":
        result = libdevice.pow(x, y)
    elif OPERATION == "log1p":
        result = libdevice.log1p(x)
    elif OPERATION == "atan2":
        result = libdevice.atan2(x, y)
    elif OPERATION == "erfc":
        result = libdevice.erfc(x)
    elif OPERATION == "round":
        result = libdevice.round(x)
    elif OPERATION == "nearbyint":
        result = libdevice.nearbyint(x)
    elif OPERATION == "copysign":
        result = libdevice.copysign(x, y)
    elif OPERATION == "div_rn":
        result = libdevice.div_rn(x, y)
    elif OPERATION == "fma":
        result = libdevice.fma(x, y, x)
    elif OPERATION == "llrint":
        result = libdevice.llrint(x)
    elif OPERATION == "float2int_rd":
        result = libdevice.float2int_rd(x)
    elif OPERATION == "float_as_int":
        result = libdevice.float_as_int(x)
    elif OPERATION == "finite":
        result = libdevice.finitef(x).to(tl.int32)
    elif OPERATION == "signbit":
        result = libdevice.signbit(x).to(tl.int32)
    elif OPERATION == "saturate":
        result = libdevice.saturatef(x)
    elif OPERATION == "clz":
        result = libdevice.clz(x)
    elif OPERATION == "ffs":
        result = libdevice.ffs(x)
    elif OPERATION == "popc":
        result = libdevice.popc(x)
    elif OPERATION == "brev":
        result = libdevice.brev(x)
    elif OPERATION == "div_rz":
        result = libdevice.div_rz(x, y)
    else:
        tl.static_assert(False, "no such operation")
    tl.store(out_ptr + offsets, result, mask=mask)


@triton.jit
def combine_three(a, b, c, d, e, f):
    return a * d, b * d + e, tl.maximum(c, f)


@triton.jit
def tile_kernel(x_ptr, out_ptr, OPERATION: tl.constexpr, DIM: tl.constexpr, FLAG: tl.constexpr):
    """Rearranges tiles of 4 x 8 numbers, along an axis and with a flag where the operation has them."""
    rows, columns = tl.arange(0, 4)[:, None], tl.arange(0, 8)[None, :]
    program = tl.program_id(0)
    places = rows * 8 + columns
    x = tl.load(x_ptr + program * 32 + places)
    if OPERATION == "cat":
        both = tl.cat(x, -x, dim=DIM)
        height: tl.constexpr = 8 if DIM == 0 else 4
        width: tl.constexpr = 64 // height
        wide = tl.arange(0, height)[:, None] * width + tl.arange(0, width)[None, :]
        tl.store(out_ptr + program * 64 + wide, both)
    elif OPERATION == "scan":
        scanned = tl.associative_scan((x, x + 1, (x * 3).to(tl.int32)), DIM, combine_three, reverse=FLAG)
        for number in tl.static_range(3):
            tl.store(out_ptr + program * 96 + number * 32 + places, scanned[number].to(tl.float32))
    elif OPERATION == "topk":
        tl.store(out_ptr + program * 8 + rows * 2 + tl.arange(0, 2)[None, :], tl.topk(x, 2))
    else:
        if OPERATION == "gather":
            index = (places * 5 + program) % (4 if DIM == 0 else 8)
            result = tl.gather(x, index, DIM)
        elif OPERATION == "sort":
            result = tl.sort(x, descending=FLAG)
        elif OPERATION == "flip":
            result = tl.flip(x, DIM)
        else:
            tl.static_assert(False, "no such operation")
        tl.store(out_ptr + program * 32 + places, result)


@triton.jit
def masked_histogram_kernel(x_ptr, out_ptr, size):
    places = tl.arange(0, 32)
    x = tl.load(x_ptr + tl.program_id(0) * 32 + places)
    tl.store(out_ptr + tl.program_id(0) * 8 + tl.arange(0, 8), tl.histogram(x, 8, mask=places < size))


@triton.jit
def compare_and_swap_kernel(target_ptr, old_ptr, expected, value):
    """Each program puts its own value into 8 places where they hold what it expects."""
    places = tl.arange(0, 8)
    program = tl.program_id(0)
    zeros = tl.zeros((8,), target_ptr.dtype.element_ty)
    old = tl.atomic_cas(target_ptr + places, zeros + expected, zeros + value + program)
    tl.store(old_ptr + program * 8 + places, old)


@triton.jit
def count_kernel(count_ptr, out_ptr, BLOCK: tl.constexpr):
    """Counts at places of which some may be outside."""
    places = tl.arange(0, BLOCK)
    tl.store(out_ptr + places, tl.atomic_add(count_ptr + places, 1))


@triton.jit
def atomic_copy_kernel(x_ptr, out_ptr, size):
    places = tl.arange(0, 8)
    x = tl.atomic_load(x_ptr + places, mask=places < size)
    tl.atomic_store(out_ptr + places, x + 1, mask=places < size)


@triton.jit
def poll_kernel(flag_ptr, out_ptr, wanted, LIMITED: tl.constexpr):
    """Each program waits for the number before its own and stores its own."""
    program = tl.program_id(0)
    if LIMITED:
        seen = tl.atomic_poll(flag_ptr, program + wanted, timeout_ns=1000)
    else:
        seen = tl.atomic_poll(flag_ptr, program + wanted)
    tl.store(out_ptr + program, seen.to(tl.int32))
    tl.atomic_store(flag_ptr, program + 1)


@triton.jit
def block_pointer_kernel(x_ptr, out_ptr, rows, columns, PADDING: tl.constexpr, CHECKED: tl.constexpr):
    """Stores two tiles, 8 columns apart, of which parts are outside of the matrix."""
    x = tl.make_block_ptr(x_ptr, (rows, columns), (columns, 1), (1, 4), (8, 16), (1, 0))
    out = tl.make_block_ptr(out_ptr, (8, 32), (32, 1), (0, 0), (8, 16), (1, 0))
    for _ in range(2):
        tile = tl.load(x, boundary_check=(0, 1), padding_option=PADDING) if CHECKED else tl.load(x)
        tl.store(out, tile, boundary_check=(0, 1))
        x = tl.advance(x, (0, 8))
        out = tl.advance(out, (0, 16))


@triton.jit
def indexed_descriptor_kernel(x_ptr, index_ptr, out_ptr, rows, columns, GATHERS: tl.constexpr):
    """Loads or stores 8 rows by their numbers, from column 4 on."""
    numbers = tl.load(index_ptr + tl.arange(0, 8))
    places = tl.arange(0, 8)[:, None] * 16 + tl.arange(0, 16)[None, :]
    if GATHERS:
        x = tl.make_tensor_descriptor(x_ptr, [rows, columns], [columns, 1], [1, 16])
        tl.store(out_ptr + places, x.gather(numbers, 4))
    else:
        out = tl.make_tensor_descriptor(out_ptr, [rows, columns], [columns, 1], [1, 16])
        out.scatter(tl.load(x_ptr + places), numbers, 4)


@triton.jit
def padded_descriptor_kernel(x_ptr, out_ptr, rows, columns, PADDING: tl.constexpr):
    x = tl.make_tensor_descriptor(x_ptr, [rows, columns], [columns, 1], [8, 16], padding_option=PADDING)
    places = tl.arange(0, 8)[:, None] * 16 + tl.arange(0, 16)[None, :]
    tl.store(out_ptr + places, x.load([1, 4]))


@triton.jit
def updating_descriptor_kernel(x_ptr, out_ptr, rows, columns, OPERATION: tl.constexpr):
    """Updates tiles of 8 x 16 numbers, which overlap those of other programs and reach outside."""
    out = tl.make_tensor_descriptor(out_ptr, [rows, columns], [columns, 1], [8, 16])
    x = tl.load(x_ptr + tl.arange(0, 8)[:, None] * 16 + tl.arange(0, 16)[None, :])
    if OPERATION == "add":
        out.atomic_add([tl.program_id(0) * 4, 4], x)
    else:
        out.atomic_max([tl.program_id(0) * 4, 4], x)
