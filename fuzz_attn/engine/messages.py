"""What a worker process and its parent say to each other. Plain data, one JSON line each."""

from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.families import Family
from fuzz_attn.case.plain import Plain
from fuzz_attn.coverage.mask_coverage import Mask
from fuzz_attn.oracle.verdict import Verdict


class Setup(Plain, frozen=True):
    """What a worker is to run."""

    target: str
    family: Family | None = None
    backend: str = "auto"


class Order(Plain, frozen=True):
    """One case to judge, with one relation on top of the launch properties, or none.

    ``digest`` asks for the digest of its tensors instead, without a launch.
    """

    case: AttentionCase
    relation: str | None = None
    digest: bool = False


class Answer(Plain, frozen=True, tag="answer"):
    """The verdict on an order, or the digest of its tensors where that was asked for.

    ``masks`` of the kernels showed something that this process has not told before: nothing is lost with it but the
    case that killed it, and after the first cases there is hardly anything to tell. ``compiled`` kernels were compiled
    for this case, ``loaded`` ones found compiled by an earlier process.
    """

    verdict: Verdict = Verdict("oracle")
    digest: str = ""
    masks: tuple[Mask, ...] = ()
    compiled: int = 0
    loaded: int = 0


DEVICE_LOST = 114
"""Exit status of a process that ends itself because a launch broke its device."""


class Died(Plain, frozen=True, tag="died"):
    """The process that was to answer is dead: its exit status, or minus the signal that killed it."""

    code: int


class Unsupported(Plain, frozen=True, tag="unsupported"):
    """The backend cannot run the target's kernel, which may be quite right."""

    reason: str


class Ready(Plain, frozen=True, tag="ready"):
    """A worker is set up: what it runs, on which backend, with which shims, and what the target promises."""

    target: str
    slug: str
    family: Family
    backend: str
    device: str = "cpu"
    sanitizers: bool = False
    shims: tuple[str, ...] = ()
    domain: Domain = Domain()


class Refused(Plain, frozen=True, tag="refused"):
    """A worker cannot be set up, for a reason that the user can mend; or cannot judge, since the harness is broken."""

    reason: str
