"""Contract trial: one argument of a call in an unusual form, which a target gets right or refuses.

The numbers of the case stay the same. Only the form of the argument differs: its strides, address, type, device or
memory.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import Meta

from fuzz_attn.case.plain import Plain

Form: TypeAlias = Literal["stepped", "expanded", "swapped", "offset", "type", "device", "in_place", "empty"]
OtherType: TypeAlias = Literal["", "wider", "int32", "int64", "uint8", "float16", "float64"]

FORMS: Final[dict[Form, tuple[str, str]]] = {
    "stepped": ("strides of {}", "every second element of a larger tensor"),
    "expanded": ("strides of {}", "one number, expanded with a stride of 0"),
    "swapped": ("strides of {}", "a transposed view, the second axis first in memory"),
    "offset": ("address of {}", "a view that begins one element behind a multiple of 16 bytes"),
    "type": ("type of {}", "{}"),
    "device": ("device of {}", "a tensor on another device"),
    "in_place": ("output in place of {}", "one tensor"),
    "empty": ("an empty batch", "no sequence and no token"),
}
"""What each form is a form of, by which failures are told apart, and the form in words."""
TOGETHER: Final = {
    "key_cache": "value_cache",
    "new_keys": "new_values",
    "k_scale": "v_scale",
    "key": "value",
    "first_output": "second_output",
    "first_lse": "second_lse",
}
"""Roles whose arguments get a form together, because launchers may take their strides and types for the same."""
OUTPUT_OF: Final = {
    "query": "output",
    "first_output": "out",
    "second_output": "out",
}
"""The output that may be written in the place of an input: each row of it needs only that row of the input."""
NAME: Final = "contract"
"""A trial in signatures and statistics, and the property that it checks."""
REFUSED: Final = "refused"
"""How the message of a trial begins that a target refuses."""
TRAIT: Final = "contract: "
"""How the trait of a trial begins."""


class ContractTrial(Plain, frozen=True):
    """The form of the arguments of a ``role``; ``to`` is the other type of a form ``type``.

    - ``stepped``: every second element of a larger tensor, so that the last stride is 2.
    - ``expanded``: equal numbers with a stride of 0.
    - ``swapped``: a tensor whose second axis comes first in memory.
    - ``offset``: a view whose address is no multiple of 16 bytes.
    - ``type``: the same numbers in another type. A ``wider`` one is float32 of 16 bits and float64 of float32.
    - ``device``: on the CPU for a GPU, and of the device ``meta`` on a CPU.
    - ``in_place``: the output is the same tensor as the input.
    - ``empty``: there is no sequence at all. It is the case that is unusual, and no argument.
    """

    form: Form
    role: Annotated[str, Meta(pattern=r"^\w*\Z", max_length=100)] = ""
    to: OtherType = ""

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles whose arguments have the form."""
        other = TOGETHER.get(self.role) if self.form != "in_place" else OUTPUT_OF.get(self.role)
        return (self.role, other) if other else (self.role,)

    @property
    def subject(self) -> str:
        """What the form is a form of: ``strides of seq_lens``. Failures of one subject have one class."""
        roles = self.roles if self.form != "in_place" else (self.role,)
        return FORMS[self.form][0].format(" and ".join(roles))

    @property
    def way(self) -> str:
        """In what way a target that fails reads its arguments. Failures of one way are one row of a run.

        What passes no stride of one argument mostly passes none of others, so strides are one way: those of elements,
        and those of a transposed view.
        """
        return {"stepped": "elements", "expanded": "elements", "swapped": "axes"}.get(self.form, self.subject)

    @property
    def words(self) -> str:
        """The form in words."""
        return FORMS[self.form][1].format({"wider": "a wider type"}.get(self.to, self.to))


def trial_of(case: Any) -> ContractTrial | None:
    """Return the trial of a case of any operation, None for an ordinary case and for a sequence of calls."""
    trial: ContractTrial | None = getattr(case, "contract", None)
    return trial


def is_refused(case: Any, message: str) -> bool:
    """Return whether a case is a trial that the target refuses, from the message of its verdict: it judges nothing."""
    return trial_of(case) is not None and message.startswith(REFUSED)


def trait_of(case: Any) -> tuple[str, ...]:
    """Return the trait of the trial of a case."""
    trial = trial_of(case)
    return () if trial is None else (f"{TRAIT}{trial.subject}",)


def named_of(case: Any) -> tuple[str, ...]:
    """Return how the signature of a failure names that its case is a trial."""
    return () if trial_of(case) is None else (NAME,)


def lines_of(case: Any) -> list[tuple[str, str]]:
    """Return the trial of a case as a line of its description."""
    trial = trial_of(case)
    return [] if trial is None else [(f"contract, {trial.subject}", trial.words)]
