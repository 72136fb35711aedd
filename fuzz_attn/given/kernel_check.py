"""Kernel check: judges one case of a user's test, and says what is wrong."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec
from hypothesis import currently_in_test_context, event, reject, settings, target
from hypothesis.control import current_build_context
from hypothesis.errors import InvalidArgument
from rich.console import Group
from rich.text import Text

from fuzz_attn.counterexamples import counterexample
from fuzz_attn.counterexamples.counterexample import Counterexample
from fuzz_attn.engine.failures.confirmation import explained, in_words, signed
from fuzz_attn.engine.failures.triage import failures_of
from fuzz_attn.engine.orders import Answer, Order
from fuzz_attn.errors import CounterexampleError, DomainError, KernelError, NotJudgedError
from fuzz_attn.given.kernel_judge import KernelJudge
from fuzz_attn.oracle.verdict import Verdict
from fuzz_attn.report.failure import case_table, command_for, elements_table
from fuzz_attn.report.printing import safe, text_of, whole

SHORTEST_DEADLINE: Final = timedelta(seconds=10)
"""A first case of new sizes is compiled or lowered, which takes longer than Hypothesis' default deadline."""


def check_case(
    judge: KernelJudge, case: Any, relation: str | None, folder: Path, *, toward_bound: bool = False
) -> None:
    """Raise :class:`KernelError` for a case, or the path of a saved one, on which a kernel is wrong.

    In a test with ``@given``, Hypothesis is told the features of the case and, with ``toward_bound``, how near the
    output is to its bound; a case that is not judged is rejected. Elsewhere that raises :class:`NotJudgedError`. A
    failure that is shown to the user is explained, and saved below ``folder``.
    """
    __tracebackhide__ = True
    in_test = currently_in_test_context()
    if in_test:
        _check_deadline()
    case = _case_of(judge, case)
    order = Order(case, _relation_of(judge, relation))
    obstacle = _unpromised(judge, order)
    answer = Answer() if obstacle else judge.judge(order)
    obstacle = obstacle or _refused(answer)
    if obstacle:
        _not_judged(f"{judge.ready.target} {obstacle}", in_test=in_test)
    failures = failures_of(answer)
    if failures:
        raise _error(judge, order, failures[0], folder)
    if in_test:
        _tell_features(judge, case)
    if in_test and toward_bound:
        _tell_ratio(judge, order, answer.verdict)


def _check_deadline() -> None:
    """Raise :class:`NotJudgedError` for a deadline that the first case of new sizes would exceed."""
    deadline = settings().deadline
    if deadline is not None and deadline < SHORTEST_DEADLINE:
        raise NotJudgedError(
            f"deadline={deadline.total_seconds() * 1e3:g} ms is too short for a kernel, which compiles for new sizes: "
            "write @settings(deadline=None) above the test"
        )


def _case_of(judge: KernelJudge, case: Any) -> Any:
    """Return a case, that of a file for its path; raises :class:`DomainError` for anything else."""
    found = counterexample.load(Path(case)).case if isinstance(case, str | Path) else case
    expected = judge.operation.case_type
    if not isinstance(found, expected):
        raise DomainError(f"case={found!r} must be of the type {expected.__name__}, which {judge.ready.target} takes")
    return found


def _relation_of(judge: KernelJudge, relation: str | None) -> str | None:
    known = judge.operation.relations
    if relation is not None and relation not in known:
        raise DomainError(f"relation={relation!r} must be one of: {', '.join(known)}")
    return relation


def _unpromised(judge: KernelJudge, order: Order) -> str:
    """Return why a case is outside of what its target promises; an empty string if it is inside."""
    lacking = judge.operation.unpromised(order.case, judge.ready.domain)
    if lacking:
        return f"does not promise {lacking}"
    if order.relation is None or judge.operation.allows(order.case, order.relation, judge.ready.domain):
        return ""
    return f"need not hold the relation {order.relation} on this case"


def _refused(answer: Answer) -> str:
    """Return what the target or the compiler says where it refuses a case; an empty string where it does not."""
    refusal = answer.refusal
    return f"refuses the case: {refusal.error}: {refusal.message}" if refusal is not None else ""


def _not_judged(why: str, *, in_test: bool) -> None:
    if not in_test:
        raise NotJudgedError(safe(why))
    event(f"not judged: {safe(why)}")
    reject()


def _tell_features(judge: KernelJudge, case: Any) -> None:
    """Tell Hypothesis' statistics what a case that passed has."""
    for name in judge.operation.features_of(case):
        event(f"feature: {judge.operation.features[name].words}")


def _tell_ratio(judge: KernelJudge, order: Order, verdict: Verdict) -> None:
    """Let Hypothesis look for cases whose output is nearer to its bound."""
    if verdict.ratio is not None:
        label = f"error / bound of {judge.ready.target}" + f", {order.relation}" * (order.relation is not None)
        with suppress(InvalidArgument):  # a second case of the same kernel in one example
            target(verdict.ratio, label=label)


def _error(judge: KernelJudge, order: Order, verdict: Verdict, folder: Path) -> KernelError:
    """Return the error for a failure; one that is shown to the user has its cause, and is saved."""
    kind = _kind_of_error(verdict.site)
    if not is_final():
        return kind(_reason(verdict), verdict, order.case, None)
    verdict = _with_cause(judge, order, verdict)
    found = signed(order, verdict, judge.setup.target, judge.ready)
    found = msgspec.structs.replace(found, digest=judge.judge(Order(order.case, digest=True)).digest)
    path = _saved(found, folder / judge.ready.slug)
    return kind(_text(found, path), verdict, order.case, path)


def _with_cause(judge: KernelJudge, order: Order, verdict: Verdict) -> Verdict:
    """Return a failure with its cause; it counts without one too, whatever the further launches lead to."""
    try:
        return in_words(judge.judge, order, explained(judge.judge, order, verdict))
    except Exception as error:  # noqa: BLE001 - the launches are of other numbers, which nothing has judged
        hint = f"Looking for the cause ended with {type(error).__name__}: {error}. {verdict.hint}"
        return msgspec.structs.replace(verdict, hint=hint.strip())


@cache
def _kind_of_error(site: str) -> type[KernelError]:
    """Return the class of the errors of a line of the kernel, or of those without a line.

    Hypothesis takes failures for one bug, and shrinks one into another, that have one class and are raised on one line.
    Short summaries print the name of the class with its module.
    """
    return type(KernelError.__name__, (KernelError,), {"__module__": "fuzz_attn", "site": site})


def _reason(verdict: Verdict) -> str:
    """Return what is wrong in one line, the cause first where it is known."""
    why = f"{verdict.explanation}: " if verdict.explanation else ""
    return safe(" ".join(f"{why}{verdict.what}: {verdict.message}".split()))


def _saved(found: Counterexample, folder: Path) -> Path:
    """Return the file of a counterexample: the one of an earlier run with the same case, else a new one."""
    for path in sorted(folder.glob(f"{found.signature}*.json")):
        with suppress(CounterexampleError):
            earlier = counterexample.load(path)
            if (earlier.case, earlier.relation, earlier.target) == (found.case, found.relation, found.target):
                return path
    return counterexample.save(found, folder)


def _text(found: Counterexample, path: Path) -> str:
    """Return a failure in words: the reason, the case, the worst elements and the commands for its file."""
    verdict = found.verdict
    parts = [Text(verdict.hint)] if verdict.hint else []
    tables = [case_table(found), *([elements_table(verdict.worst)] if verdict.worst else [])]
    commands = [whole(f" {command_for(command, path, found)}") for command in ("replay", "explain")]
    body = Group(*parts, *tables, Text("Saved, to replay and explain it"), *commands)
    return f"{_reason(verdict)}\n{text_of(body)}"


def is_final() -> bool:
    """Return whether the running example is shown to the user; true outside of tests with ``@given``.

    Hypothesis runs the simplest failing example once more to show it, and each ``@example`` only once. Its ``note``
    prints in these runs only.
    """
    return not currently_in_test_context() or current_build_context().is_final
