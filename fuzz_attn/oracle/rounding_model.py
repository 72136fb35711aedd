"""RoundingModel: how a target computes, as far as the error bound must know. Part of a target's description."""

from msgspec import Struct

from fuzz_attn.case.dtypes import DTypeName


class RoundingModel(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Which roundings a correct target may make. The defaults describe this project's kernels and plain torch ones.

    ``probability``: the type that P is cast to before it meets V; None is the type of q (bfloat16 when q is fp8).
    ``tf32``: dots of float32 operands may cut them to tf32.
    ``accumulate``: the type in which dots are summed. ``accumulate_slack`` is how many of its unit roundoffs one
    addition may lose: 1 for rounding to nearest, 2 for a unit that truncates. ``tensor_core_slack`` is the same for
    operands of two bytes or cut to tf32, which GPUs sum in tensor cores: the backend raises it where they truncate.
    ``fp8_dot_slack`` is for targets whose fp8 operands meet unwidened, where a tensor core keeps fewer bits of the sum.
    ``tile_size``: the fewest keys that the target treats between two rescalings of its accumulator.
    ``rounds_dequantised``: False where the target keeps dequantised K and V in more precision than q's type.
    ``tanh_units``: how many units of its own result the soft cap's tanh may lose; None where it is only absolutely
    exact, as one made of exponentials is, which loses scores that are small beside the cap.
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
