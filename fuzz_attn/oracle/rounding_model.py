"""Rounding model: which roundings a correct target may make, as far as they affect the error bound."""

from msgspec import Struct

from fuzz_attn.case.dtypes import DTypeName


class RoundingModel(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The roundings of a target. The defaults describe plain torch implementations.

    - ``probability``: the type that P is cast to before its product with V; None for the type of q (bfloat16 if q is
      fp8).
    - ``tf32``: whether dots of float32 operands may cut them to tf32.
    - ``accumulate``: the type in which dots are summed.
    - ``accumulate_slack``: how many unit roundoffs of that type one addition may lose: 1 if it rounds to nearest, 2 if
      it truncates.
    - ``tensor_core_slack``: the same for operands of two bytes or cut to tf32, which GPUs sum in tensor cores. The
      backend raises it for tensor cores that truncate.
    - ``fp8_dot_slack``: the same for fp8 operands that the target does not widen; tensor cores keep fewer bits of such
      sums.
    - ``tile_size``: the smallest number of keys between two rescalings of the accumulator.
    - ``rounds_dequantised``: False if the target keeps dequantised K and V in a higher precision than the type of q.
    - ``tanh_units``: how many units of its result the soft cap's tanh may lose. None for a tanh with an absolute error,
      such as one made of exponentials, which is inaccurate for scores that are small beside the cap.
    - ``normalises_last``: True if the target divides by the denominator once, after all sums. Then logits of exactly 0
      have weights of exactly 1, and sums of values on a coarse grid are exact (:mod:`fuzz_attn.oracle.exactness`).
    """

    probability: DTypeName | None = None
    tf32: bool = False
    accumulate: DTypeName = "float32"
    accumulate_slack: float = 1.0
    tensor_core_slack: float = 1.0
    fp8_dot_slack: float = 1.0
    tile_size: int = 16
    rounds_dequantised: bool = True
    tanh_units: float | None = None
    normalises_last: bool = False
