"""Refusal: a launch that the target or the compiler refuses, as plain data that crosses processes and files."""

from typing import Final, Literal, TypeAlias

from fuzz_attn.case.plain import Plain

OUT_OF_RESOURCES: Final = "OutOfResources"
"""What Triton raises where a kernel needs more registers, threads or shared memory than a GPU has."""
Stage: TypeAlias = Literal["host", "compile"]
Site: TypeAlias = tuple[str, str, str]
"""Where a target refuses, and how."""

NOT_REDUCED: Final = "not reduced fully"
"""Stands at the end of a combination for everything else of the case that it was found in."""


class Refusal(Plain, frozen=True):
    """Why the target or the compiler refuses a case: no kernel ran, so there is nothing to judge.

    ``stage`` is ``host`` for an exception of the target before its first launch, ``compile`` for a kernel that does not
    compile. ``error`` names the exception and ``message`` is its text. ``location`` is ``file:line`` of the refusing
    line and ``source`` its text.
    """

    stage: Stage
    error: str
    message: str
    location: str = ""
    source: str = ""

    @property
    def site(self) -> Site:
        """What refusals for one reason have in common; the message may name sizes, so it is the site without a line."""
        return (self.stage, self.error, self.location or self.message)
