"""Orders: what a worker that judges cases is set up with and asked, and what it answers; plain data, sent as JSON."""

from typing import ClassVar

from fuzz_attn.backends.gpus import GpuFacts
from fuzz_attn.backends.kernel_coverage import KernelConfigurations, Mask
from fuzz_attn.binding.binding import Binding
from fuzz_attn.case.aspect_table import NotDrawn
from fuzz_attn.case.plain import FileName, Plain
from fuzz_attn.forensics.explanation import Explanation
from fuzz_attn.operations.registry import DEFAULT_DOMAIN, AnyCase, AnyDomain, FamilyName, HoldsCases, operation_of
from fuzz_attn.oracle.verdict import Refusal, Verdict


class Setup(Plain, frozen=True):
    """The target and the backend of a worker; ``memory`` is its limit in bytes, 0 for none.

    With ``strict``, what the target refuses is a failure. ``binding`` is what the user states of how it is called.
    Without ``checks_device`` another worker of the run checks the arithmetic of the same device.
    """

    target: str
    family: FamilyName | None = None
    backend: str = "auto"
    strict: bool = False
    memory: int = 0
    binding: Binding | None = None
    checks_device: bool = True


class Ready(HoldsCases, frozen=True, tag="ready"):
    """The worker is set up: its target, backend and shims, and the domain that the target promises.

    ``gpu`` is the compute capability of a GPU and the number of its multiprocessors. ``notes`` are sentences for the
    summary of the run. ``binding`` is how the target is called and ``reasons`` say why each parameter has its role;
    ``published`` is true where the names of the parameters tell all of it. ``not_drawn`` says why features of the
    family are not in the domain, and ``unexercised`` names optional arguments that no case has. ``calls`` says whether
    several calls may be one case, ``contracts`` whether cases may be contract trials.
    """

    of_operations: ClassVar = ("domain",)

    target: str
    slug: FileName
    family: FamilyName
    backend: str
    device: str = "cpu"
    sanitizers: bool = False
    shims: tuple[str, ...] = ()
    domain: AnyDomain = DEFAULT_DOMAIN
    notes: tuple[str, ...] = ()
    binding: Binding = Binding()
    reasons: dict[str, str] = {}  # noqa: RUF012 - msgspec copies it for each struct
    published: bool = True
    gpu: GpuFacts | None = None
    not_drawn: NotDrawn = {}  # noqa: RUF012 - as above
    unexercised: tuple[str, ...] = ()
    calls: bool = False
    contracts: bool = False


class Order(HoldsCases, frozen=True):
    """One case to judge, with at most one metamorphic relation on top of the launch properties.

    With ``digest`` the worker returns the digest of the case's tensors and launches nothing. With ``probes`` it
    launches those cases instead and returns only which of them are refused; with ``host_only`` by host code, for
    which no kernel has to run. With ``explain`` a failure also names the poison that reaches the output, or the
    rounding that would explain it, which takes more launches. With ``forensics`` the answer is only an explanation of
    what the kernel did, which takes up to a few hundred, and of what sanitizers find it is about that at the ``site``,
    if one is named. With ``thorough`` it also looks for a change of the kernel that makes the case right, which takes
    thousands; with ``healthy``, a target that is right on the case, it also names the first operation that gives
    another value there. With ``compiled`` the case is not judged if a kernel of
    it would have to be compiled first.
    """

    of_operations: ClassVar = ("case", "probes")

    case: AnyCase
    relation: str | None = None
    digest: bool = False
    probes: tuple[AnyCase, ...] = ()
    host_only: bool = False
    explain: bool = False
    forensics: bool = False
    site: str = ""
    thorough: bool = False
    healthy: str = ""
    compiled: bool = False

    @property
    def in_fresh_process(self) -> bool:
        """Whether the case is about what a process keeps, so that each look at its failure needs one of its own."""
        return operation_of(self.case).needs_fresh_process

    @property
    def only_judges(self) -> bool:
        """Whether the order asks for the verdict and nothing else, which takes few launches."""
        return not (self.digest or self.probes or self.explain or self.forensics)


class Answer(Plain, frozen=True, tag="answer"):
    """The verdict on an order, or the digest of its tensors.

    ``verdict`` is the first failure, or the oracle's verdict of a pass; ``others`` holds further failures of the same
    case: what a sanitizer found does not end the judging. With a ``refusal`` there is no verdict.
    ``unsupported`` is the operation that the backend cannot run, with its source line; ``instead`` names the backend
    that judged the case in its place, and without one there is no verdict.
    ``masks`` holds only the masks with outcomes that this process has not reported before, so it is nearly always
    empty. ``compiled`` counts kernels compiled for this case, which took ``compiling`` seconds, and ``loaded`` those
    found compiled by another process.
    ``notes`` are sentences for the summary: what the worker has learned of the target. ``keeps`` names what it was seen
    to keep between calls since the last answer.
    ``explanation`` is what an order with ``forensics`` asks for.
    ``missing`` is true where a kernel is not compiled and the order does not allow to wait for that.
    ``killed`` is true where a signal ended the worker that other processes send, so that the case may be innocent.
    ``fresh`` is true for a hang that lasted for the full limit in a process that had judged no other case.
    ``configurations`` are those that autotuned kernels were launched with.
    ``earlier`` is what the order showed in a process that had judged others, where it was judged again in a fresh one.
    """

    verdict: Verdict = Verdict("oracle")
    others: tuple[Verdict, ...] = ()
    refusal: Refusal | None = None
    refusals: tuple[Refusal | None, ...] = ()
    unsupported: str = ""
    instead: str = ""
    digest: str = ""
    masks: tuple[Mask, ...] = ()
    compiled: int = 0
    loaded: int = 0
    compiling: float = 0.0
    missing: bool = False
    killed: bool = False
    fresh: bool = False
    earlier: Verdict | None = None
    notes: tuple[str, ...] = ()
    keeps: tuple[str, ...] = ()
    explanation: Explanation | None = None
    configurations: tuple[KernelConfigurations, ...] = ()

    @property
    def judged(self) -> bool:
        """Whether there is a verdict."""
        return self.refusal is None and not self.missing and (not self.unsupported or bool(self.instead))
