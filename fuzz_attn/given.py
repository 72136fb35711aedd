"""Given: cases and verdicts for a user's own tests with Hypothesis.

A kernel judge loads each kernel once, a kernel check judges one case for ``fuzz_attn.check`` and says what is wrong.
Narrowed cases are the strategy of ``fuzz_attn.cases``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from hypothesis import currently_in_test_context, event, reject, settings, target
from hypothesis import strategies as st
from hypothesis.control import current_build_context
from hypothesis.errors import InvalidArgument
from hypothesis.strategies import SearchStrategy
from msgspec.structs import replace
from rich.console import Group
from rich.text import Text

from fuzz_attn import counterexamples
from fuzz_attn.binding.binding import Binding
from fuzz_attn.case.aspects import MASK_FEATURES, Aspect
from fuzz_attn.case.domain import within
from fuzz_attn.case.parts import DTypes
from fuzz_attn.counterexamples import Counterexample
from fuzz_attn.engine.case_judge import load
from fuzz_attn.engine.failures.confirmation import explained, in_words, signed
from fuzz_attn.engine.failures.triage import failures_of
from fuzz_attn.engine.orders import Answer, Order, Setup
from fuzz_attn.errors import CaseError, CounterexampleError, DomainError, KernelError, NotJudgedError
from fuzz_attn.operations.registry import operation_of
from fuzz_attn.oracle.verdict import Verdict
from fuzz_attn.report.failure import case_table, command_for, elements_table
from fuzz_attn.report.printing import safe, text_of, whole


class KernelJudge:
    """Judges cases on a target in this process; raises :class:`FuzzAttnError` where target or backend do not load."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        with _one_thread():
            self._judge = load(setup)
            self.ready = self._judge.ready()
        self.operation = operation_of(self.ready.domain)

    def judge(self, order: Order) -> Answer:
        """Return the answer to an order; raises :class:`BackendError` where the backend cannot run the kernel."""
        with _one_thread():
            return self._judge.judge(order)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let torch use one thread, as everywhere in this package, and afterwards as many as the user's other tests had."""
    import torch  # noqa: PLC0415 - here, so that a test that is only collected does not import it

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def kernel_judge(target: str, family: str | None, binding: Binding | None, backend: str | None) -> KernelJudge:
    """Return the judge of a target, the same one each time.

    Without a ``backend`` it is ``auto``, but with ``TRITON_INTERPRET=1`` the interpreter, as Triton has decorated the
    kernels of this process for that.
    """
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    chosen = backend or ("interpreter" if interpreted else "auto")
    return _loaded(target, family, msgspec.json.encode(binding), chosen)


@cache
def _loaded(target: str, family: str | None, binding: bytes, backend: str) -> KernelJudge:
    stated = msgspec.json.decode(binding, type=Binding | None)
    return KernelJudge(Setup(target, family, backend, binding=stated))


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
    found = counterexamples.load(Path(case)).case if isinstance(case, str | Path) else case
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
            earlier = counterexamples.load(path)
            if (earlier.case, earlier.relation, earlier.target) == (found.case, found.relation, found.target):
                return path
    return counterexamples.save(found, folder)


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


AT_MOST: Final = "max_"
"""How the names of lengths begin, which the cases only may not exceed."""
_LENGTH: Final = Annotated[int, msgspec.Meta(ge=1)]


def narrowed_cases(judge: Callable[[], KernelJudge], chosen: Mapping[str, Any]) -> SearchStrategy[Any]:
    """Return a strategy of cases of a kernel, with ``chosen`` values or values of chosen strategies.

    The kernel is loaded when the strategy is used first. It shrinks the values of strategies first, then as the
    strategies do that campaigns draw from. Raises :class:`DomainError` for an unknown name and for a value that the
    kernel does not promise.
    """
    return st.deferred(lambda: _narrowed(Choices(judge()), chosen))


def _narrowed(choices: Choices, chosen: Mapping[str, Any]) -> SearchStrategy[Any]:
    for name in chosen:
        choices.aspect(name)
    drawn = {name: value for name, value in chosen.items() if isinstance(value, SearchStrategy)}
    fixed = {name: choices.checked(name, value) for name, value in chosen.items() if name not in drawn}
    choices.check_together(fixed)
    return _cases(choices, fixed, drawn)


@st.composite
def _cases(
    draw: st.DrawFn, choices: Choices, fixed: Mapping[str, Any], drawn: Mapping[str, SearchStrategy[Any]]
) -> Any:
    values = {name: choices.checked(name, draw(strategy)) for name, strategy in drawn.items()}
    case = draw(choices.strategy(fixed, values))
    values = {**fixed, **values}
    try:
        for name, value in values.items():
            case = choices.having(case, name, value)
    except CaseError:
        reject()
    if not all(choices.has(case, name, value) for name, value in values.items()) or choices.unpromised(case):
        reject()
    return case


class Choices:
    """What a test may choose of the cases of a target."""

    def __init__(self, judge: KernelJudge) -> None:
        self._operation, self._domain, self._target = judge.operation, judge.ready.domain, judge.ready.target
        self._strategies: dict[frozenset[tuple[str, Any]], SearchStrategy[Any]] = {}

    def aspect(self, name: str) -> Aspect:
        """Return the aspect of a name; raises :class:`DomainError` for an unknown one."""
        known = self._operation.arguments
        if name not in known:
            promised = known.keys() - (self._operation.features.keys() - self._domain.features)
            raise DomainError(f"cases() has no argument {name!r}: choose among {', '.join(sorted(promised))}")
        return known[name]

    def checked(self, name: str, value: Any) -> Any:
        """Return a value as cases have it; raises :class:`DomainError`, with name, value and bound, for a wrong one."""
        aspect, feature = self.aspect(name), self._feature(name)
        if feature and value and not self._domain.allows(feature):
            raise DomainError(f"{name}={value!r} must be left out: {self._target} does not promise {aspect.words}")
        if feature and isinstance(value, bool):
            return value
        value = self._one_of(name, value) if name in ("dtypes", "mask") else self._typed(name, value)
        bounds = self._bounds(name)
        if bounds and value and not within(value, bounds):
            listed = f"from {bounds[0]} to {bounds[1]}" if len(bounds) == 2 else f"one of {', '.join(map(str, bounds))}"
            raise DomainError(f"{name}={value!r} must be {listed}: {self._target} promises no other")
        return value

    def check_together(self, fixed: Mapping[str, Any]) -> None:
        """Raise :class:`DomainError` for features that the target does not support together."""
        features = {feature for name, value in fixed.items() if (feature := self._feature(name)) and value}
        excluded = next((each for each in self._domain.excluded if each <= features), None)
        if excluded:
            words = " together with ".join(self._operation.features[each].words for each in sorted(excluded))
            raise DomainError(f"{', '.join(fixed)} cannot be: {self._target} does not promise {words}")

    def strategy(self, fixed: Mapping[str, Any], values: Mapping[str, Any]) -> SearchStrategy[Any]:
        """Return the strategy of the cases of the target that already have most of the values.

        Where a value comes from a strategy, only what leaves few domains counts: features, masks and types.
        """
        wanted = {name: value if self._bounds(name) else self._wanted(name, value) for name, value in fixed.items()}
        wanted |= {name: self._wanted(name, value) for name, value in values.items() if not self._bounds(name)}
        known = frozenset((name, value) for name, value in wanted.items() if value is not None)
        if known not in self._strategies:
            self._strategies[known] = self._operation.strategy(self._domain_of(dict(known)), dict(known))
        return self._strategies[known]

    def having(self, case: Any, name: str, value: Any) -> Any:
        """Return a case with a value if there is one; raises :class:`CaseError` where the rest does not allow it."""
        aspect = self.aspect(name)
        if self.has(case, name, value):
            return case
        is_flag = isinstance(aspect.value(case), bool)
        if isinstance(value, bool):
            return aspect.having(case, True) if value and is_flag and aspect.has_form else aspect.without(case)
        return replace(case, **{name: value}) if is_flag else aspect.having(case, value)

    def has(self, case: Any, name: str, value: Any) -> bool:
        """Return whether a case has a value; of a length, whether it is not larger."""
        found = self.aspect(name).value(case)
        if name.startswith(AT_MOST):
            return bool(found <= value)
        if isinstance(value, bool):
            return bool(found) == value
        return bool((getattr(case, name) if isinstance(found, bool) else found) == value)

    def unpromised(self, case: Any) -> str:
        """Return what of a case the target does not promise, in words."""
        return self._operation.unpromised(case, self._domain)

    def _feature(self, name: str) -> str:
        """Return the feature that an argument is about, an empty string for none."""
        return name if name in self._operation.features else self.aspect(name).feature or ""

    def _wanted(self, name: str, value: Any) -> Any:
        """Return what a value asks of compile keys: whether they have a feature, a mask, types, or None for nothing."""
        if feature := self._feature(name):
            return bool(value) if feature == name else None
        return value if name in ("dtypes", "mask") else None

    def _bounds(self, name: str) -> tuple[int, ...]:
        """Return the sizes that the domain allows, an inclusive range of two or all of them; nothing for no size."""
        bounds = getattr(self._domain, self.aspect(name).bounds or f"{name}s", ())
        return bounds if isinstance(bounds, tuple) and name not in ("dtypes", "mask") else ()

    def _domain_of(self, wanted: Mapping[str, Any]) -> Any:
        """Return the domain without the features that are not wanted, and with the only sizes that are."""
        sizes = {
            self.aspect(name).bounds or f"{name}s": (value, value)
            for name, value in wanted.items()
            if value and self._bounds(name)
        }
        left_out = {name for name, value in wanted.items() if value is False}
        return replace(self._domain, features=self._domain.features - left_out, **sizes)

    def _one_of(self, name: str, value: Any) -> Any:
        """Return a kind of mask, or types, of which a text names one for all tensors."""
        if name == "mask":
            known = [kind for kind, features in MASK_FEATURES.items() if all(map(self._domain.allows, features))]
        else:
            known = list(self._domain.dtypes)
        if name == "dtypes" and isinstance(value, DTypes):
            return value
        if value not in known:
            raise DomainError(f"{name}={value!r} must be one of {', '.join(known)}: {self._target} promises no other")
        return value if name == "mask" else DTypes(value, value, value)

    def _typed(self, name: str, value: Any) -> Any:
        """Return a value of the type of its field, which also the simplest case of the target can have."""
        case_type = self._operation.case_type
        kind = _LENGTH if name.startswith(AT_MOST) else _field_types(case_type).get(name)
        if kind is None:
            raise DomainError(f"{name}={value!r} must be True or False")
        try:
            value = msgspec.convert(value, kind)
            easy = self._operation.easy_case(self._domain)
            if name in case_type.__struct_fields__ and easy is not None:
                replace(easy, **{name: value})
            return value
        except (msgspec.ValidationError, CaseError) as error:
            raise DomainError(f"{name}={value!r} is no value of a case: {error}") from error


def _field_types(case_type: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the types of the fields of a case, and of the fields of its parts."""
    fields = {field.name: field.type for field in msgspec.structs.fields(case_type)}
    parts = (kind for kind in fields.values() if isinstance(kind, type) and issubclass(kind, msgspec.Struct))
    return {field.name: field.type for part in parts for field in msgspec.structs.fields(part)} | fields
