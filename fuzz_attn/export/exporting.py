"""Exporting: makes the script of a counterexample. Calls neither the target nor a kernel."""

from __future__ import annotations

from fuzz_attn.backends.cuda import TENSOR_CORE_SLACK
from fuzz_attn.bindings.binding import Binding
from fuzz_attn.counterexamples.counterexample import Counterexample
from fuzz_attn.engine.case_judge import load
from fuzz_attn.engine.messages import Setup
from fuzz_attn.export.expectations import expectations
from fuzz_attn.export.recorded_calls import RecordedExperiment
from fuzz_attn.export.script import Script, script_of
from fuzz_attn.export.target_source import source_of


def exported(found: Counterexample, spec: str, binding: Binding | None) -> Script:
    """Return the script of a counterexample on the target that ``spec`` names, called with ``binding``.

    Its bounds hold on every device, also where tensor cores truncate. Raises :class:`fuzz_attn.errors.FuzzAttnError`
    for a target that does not load.
    """
    # Only for the target: the script chooses its device.
    judge = load(Setup(spec, found.family, "simulator", binding=binding))
    target = judge.target.on_device(TENSOR_CORE_SLACK)
    experiment = RecordedExperiment(found.case, target, judge.backend)
    expected = expectations(experiment, found.verdict.property_name, found.relation)
    sources = [
        source_of(spec if each.call.target is target else each.call.target.name, each.call.target) for each in expected
    ]
    return script_of(found, expected, sources)
