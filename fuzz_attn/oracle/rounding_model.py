"""Rounding model: which roundings a correct target may make, as far as they affect the error bound."""

from typing import Annotated, Final, Literal, TypeAlias

from msgspec import Meta, Struct

from fuzz_attn.case.parts import DTypeName

RoundedTo: TypeAlias = Literal[DTypeName, "query", "cache"]
"""A type that numbers are rounded to: ``query`` is the type of q, bfloat16 if q is fp8, ``cache`` that of K and V."""
InputPrecision: TypeAlias = Literal["ieee", "tf32", "tf32x3", "bf16x3", "bf16x6"]
Units: TypeAlias = Annotated[float, Meta(ge=0)]

EXP_UNITS: Final = 6.0
"""Units that ``exp`` in float32 may lose: CUDA's ``ex2.approx`` loses 4 (2^-22), numpy's vectorised one 5.04."""

TANH_OF_EXPONENTIALS: Final = 12 * 2.0**-24
"""Absolute error of a tanh made of exponentials, 12 units. The worst forms are ``2 sigmoid(2x) - 1`` and its mirror
image ``1 - 2 sigmoid(-2x)``: exp loses 6 units, and its argument 2 units of itself; the sum below the fraction loses
half a spacing, an approximate division 4 units of a number of up to 2, and the subtraction half a unit. A search over
the argument gives 11.2 units for all together, and 7.5 for quotients of sums of exponentials."""


class RoundingModel(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The roundings of a target. The defaults describe kernels and torch code that compute in float32.

    Types: what is rounded to a type, on top of the roundings of float32. For ``float32`` there is no other rounding.

    - ``query``: q itself, before it is scaled or multiplied. A type that holds every q rounds nothing.
    - ``scaled_query``: q times the softmax scale, and the scale itself, before the dot with K.
    - ``products``: each product of a dot, before it is added.
    - ``accumulate``: each partial sum of a dot.
    - ``scores``: the result of the dot, then every result up to the softmax: scaling, soft cap, biases and their sums.
    - ``softmax``: the differences from the maximum, their exponentials, and the denominator at each rescaling.
    - ``probability``: P before its product with V.
    - ``partials``: the output of each segment of the keys, before the segments are merged.
    - ``lse``: the logarithm of the sum of exponentials of each segment, before the segments are merged.
    - ``output``: the output before it is scaled or stored in its own type.

    Units, in unit roundoffs of float32 unless said otherwise:

    - ``exp_units``: how many of its result an exponential may lose. The default covers ``ex2.approx``.
    - ``tanh_units``: how many of its result the soft cap's tanh may lose; None for a tanh whose error is absolute.
    - ``tanh_error``: the absolute error of such a tanh, as a number. The default covers one made of exponentials.
    - ``accumulate_slack``: how many unit roundoffs of ``accumulate`` one addition may lose: 1 if it rounds to nearest,
      2 if it truncates.
    - ``tensor_core_slack``: the same for operands of two bytes or cut to fewer bits, which GPUs sum in tensor cores.
      The backend raises it for tensor cores that truncate.
    - ``fp8_dot_slack``: the same for fp8 operands that the target does not widen; tensor cores keep fewer bits of such
      sums.

    Others:

    - ``input_precision``: how dots treat float32 operands, in Triton's words. ``tf32`` cuts them; ``tf32x3``,
      ``bf16x3`` and ``bf16x6`` split them and add that many products.
    - ``rounded_denominator``: whether the denominator may sum the weights as they were rounded to ``probability``.
    - ``rounds_dequantised``: False if the target keeps dequantised K and V in a higher precision than the type of q.
    - ``tile_size``: the smallest number of keys between two rescalings of the accumulator.
    - ``normalises_last``: True if the target divides by the denominator once, after all sums. Then logits of exactly 0
      have weights of exactly 1, and sums of values on a coarse grid are exact (:mod:`fuzz_attn.oracle.logits`).
      With ``merges_logarithms`` this is said of each segment: its sums are divided by its own denominator.
    - ``merges_logarithms``: True if the target merges segments by the logarithms of their sums of exponentials, which
      are rounded like all numbers.
    - ``most_segments``: how many such segments a row may have; 0 for any number.
    """

    query: RoundedTo = "float32"
    scaled_query: RoundedTo = "float32"
    products: RoundedTo = "float32"
    accumulate: RoundedTo = "float32"
    scores: RoundedTo = "float32"
    softmax: RoundedTo = "float32"
    probability: RoundedTo = "query"
    partials: RoundedTo = "float32"
    lse: RoundedTo = "float32"
    output: RoundedTo = "float32"
    exp_units: Units = EXP_UNITS
    tanh_units: Units | None = None
    tanh_error: Units = TANH_OF_EXPONENTIALS
    accumulate_slack: Units = 1.0
    tensor_core_slack: Units = 1.0
    fp8_dot_slack: Units = 1.0
    input_precision: InputPrecision = "ieee"
    rounded_denominator: bool = False
    rounds_dequantised: bool = True
    tile_size: Annotated[int, Meta(ge=1)] = 16
    normalises_last: bool = False
    merges_logarithms: bool = False
    most_segments: Annotated[int, Meta(ge=0)] = 0
