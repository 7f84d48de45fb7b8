# mypy: disable-error-code="no-untyped-def"
"""Functions that generated Triton kernels call: eager's semantics where Triton's operators differ.

Read by Triton's compiler, not by Python: every function is inlined into the kernels that call it.
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice

# --- combine functions of reductions and scans ---------------------------------------------------


@triton.jit
def add(a, b):
    return a + b


@triton.jit
def multiply(a, b):
    return a * b


@triton.jit
def either(a, b):
    return a | b


@triton.jit
def maximum(a, b):
    """NaN if either is."""
    return tl.where((a > b) | (a != a), a, b)


@triton.jit
def minimum(a, b):
    return tl.where((a < b) | (a != a), a, b)


@triton.jit
def fmax(a, b):
    """Ignores one NaN."""
    return tl.where((a >= b) | (b != b), a, b)


@triton.jit
def fmin(a, b):
    return tl.where((a <= b) | (b != b), a, b)


@triton.jit
def is_greater_first(a, i, b, j):
    """True if (a, i) is a better maximum than (b, j): NaN is best; ties go to the smaller index."""
    tie = (a == b) | ((a != a) & (b != b))
    return ((a > b) & (b == b)) | ((a != a) & (b == b)) | (tie & (i < j))


@triton.jit
def is_less_first(a, i, b, j):
    tie = (a == b) | ((a != a) & (b != b))
    return ((a < b) & (b == b)) | ((a != a) & (b == b)) | (tie & (i < j))


@triton.jit
def greater_first(a, i, b, j):
    better = is_greater_first(a, i, b, j)
    return tl.where(better, a, b), tl.where(better, i, j)


@triton.jit
def less_first(a, i, b, j):
    better = is_less_first(a, i, b, j)
    return tl.where(better, a, b), tl.where(better, i, j)


@triton.jit
def greater_last(a, i, b, j):
    """As in a running maximum: ties go to the larger index."""
    better = is_greater_first(a, j, b, i)
    return tl.where(better, a, b), tl.where(better, i, j)


@triton.jit
def less_last(a, i, b, j):
    better = is_less_first(a, j, b, i)
    return tl.where(better, a, b), tl.where(better, i, j)


@triton.jit
def log_add_exp(a, b):
    low = minimum(a, b)
    high = maximum(a, b)
    infinite = (low == high) & (tl.abs(low) == float("inf"))
    return tl.where(infinite, low, high + libdevice.log1p(libdevice.exp(low - high)))


@triton.jit
def welford(mean_a, m2_a, count_a, mean_b, m2_b, count_b):
    """Merge two (mean, sum of squared differences, count); an empty side changes nothing."""
    delta = tl.where(count_b == 0, 0.0, mean_b - mean_a)  # also next to an infinity
    count = count_a + count_b
    share = tl.where(count == 0, 0.0, count_b / tl.where(count == 0, 1.0, count))
    return (
        mean_a + delta * share,
        m2_a + m2_b + delta * delta * count_a * share,
        count,
    )


@triton.jit
def welford_next(mean, m2, count, x, exists, share):
    """Take one more element where it ``exists``; ``share`` is 1 over the number with it."""
    delta = x - mean
    new_mean = mean + delta * share
    return (
        tl.where(exists, new_mean, mean),
        tl.where(exists, m2 + delta * (x - new_mean), m2),
        tl.where(exists, count + 1, count),
    )


# --- arithmetic ----------------------------------------------------------------------------------


@triton.jit
def int_floordiv(a, b):
    quotient = a // b  # towards zero
    return tl.where((a % b != 0) & ((a < 0) != (b < 0)), quotient - 1, quotient)


@triton.jit
def int_remainder(a, b):
    rest = a % b  # with the sign of the dividend
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


@triton.jit
def int_pow(a, b):
    """By squaring; a negative power of anything but 1 and -1 is 0."""
    base = a.to(tl.int64)
    power = b.to(tl.int64)
    odd = (power & 1) != 0
    result = base * 0 + 1
    rest = power
    for _ in tl.static_range(63):
        result = tl.where((rest & 1) != 0, result * base, result)
        base = base * base
        rest = rest >> 1
    one = a == 1
    minus = (a.to(tl.int64)) == -1
    inverse = tl.where(one, 1, tl.where(minus, tl.where(odd, -1, 1), 0))
    return tl.where(power < 0, inverse, result).to(a.dtype)


@triton.jit
def float_remainder(a, b):
    rest = libdevice.fmod(a, b)
    return tl.where((rest != 0) & ((b < 0) != (rest < 0)), rest + b, rest)


@triton.jit
def float_floordiv(a, b, quotient):
    """``quotient`` is a / b, correctly rounded."""
    rest = libdevice.fmod(a, b)
    whole = (a - rest) / tl.where(b == 0, 1, b)
    whole = tl.where((rest != 0) & ((b < 0) != (rest < 0)), whole - 1, whole)
    down = libdevice.floor(whole)
    down = tl.where(whole - down > 0.5, down + 1, down)
    result = tl.where(whole != 0, down, libdevice.copysign(whole * 0, quotient))
    return tl.where(b == 0, quotient, result)


@triton.jit
def sign(a):
    if a.dtype.is_floating():  # LLVM would turn -1 into 1 on the way from int32 to bfloat16
        return tl.where(a > 0, 1.0, tl.where(a < 0, -1.0, 0.0)).to(a.dtype)
    return tl.where(a > 0, 1, tl.where(a < 0, -1, 0)).to(a.dtype)


@triton.jit
def shift_left(a, b, bits: tl.constexpr):
    """Shifts by a negative or too large amount give 0."""
    outside = (b < 0) | (b >= bits)
    return tl.where(outside, 0, a << tl.where(outside, 0, b)).to(a.dtype)


@triton.jit
def shift_right(a, b, top: tl.constexpr):
    """``top``: number of value bits; shifts beyond it leave only the sign."""
    outside = (b < 0) | (b >= top)
    return a >> tl.where(outside, top, b).to(a.dtype)


@triton.jit
def unsigned_shift_right(a, b, bits: tl.constexpr):
    outside = b >= bits
    return tl.where(outside, 0, a >> tl.where(outside, 0, b)).to(a.dtype)
