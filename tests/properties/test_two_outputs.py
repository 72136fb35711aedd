"""A case with a second output: it is judged, compared, explained and exported like the first one.

The second output is the logarithm of the sum of a row's weights, ``[num_query_heads, num_tokens]`` with padded columns
and gaps. All that knows of it is here: how it is made, its role, and what it must be.
"""

from __future__ import annotations

import inspect
import math
import re
import runpy
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import torch

from fuzz_attn import counterexamples
from fuzz_attn.backends.simulator import SimulatorBackend
from fuzz_attn.binding.roles import ROLES, Role
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.domain import Domain
from fuzz_attn.counterexamples import signature_of
from fuzz_attn.engine.failures.triage import class_of, is_of_output
from fuzz_attn.errors import ReturnedOutputError
from fuzz_attn.export.recorded_calls import RecordedExperiment, expectations
from fuzz_attn.export.script import Source, script_of
from fuzz_attn.forensics.lab import Lab
from fuzz_attn.forensics.wrong_outputs import outside_findings, unwritten_findings
from fuzz_attn.inputs.output_tensors import OutputTensor
from fuzz_attn.inputs.storage import output_poison
from fuzz_attn.inputs.tensors import OUTPUTS, AttentionTensors, materialise
from fuzz_attn.oracle.comparison import judge
from fuzz_attn.oracle.logits import logits_of
from fuzz_attn.oracle.reference import Expected, Reference
from fuzz_attn.oracle.rounding_model import RoundingModel
from fuzz_attn.oracle.row_blocks import row_blocks
from fuzz_attn.oracle.verdict import Verdict
from fuzz_attn.properties.check import all_failures, check
from fuzz_attn.properties.experiment import Experiment
from fuzz_attn.properties.relations import relations_of
from fuzz_attn.targets.target import Target

GAP: Final = 3
"""Padding of a row of the second output, in elements, behind the columns of padded tokens."""
POISON: Final = output_poison("float32", 1)
Change = Callable[[torch.Tensor, int], None]
"""Changes the second output, whose columns of tokens are as many as the number says, after it was written."""


def made(case: AttentionCase, device: str) -> OutputTensor:
    """Return the second output of a case."""
    tokens = case.num_tokens + case.padded_tokens
    memory = torch.full((case.heads.num_query_heads, tokens + GAP), POISON - 2**32, dtype=torch.int64).int()
    tensor = memory.view(torch.float32)[:, :tokens].to(device)
    return OutputTensor(tensor, POISON, (slice(None), slice(0, case.num_tokens)), axes=("head", "token"))


def expected_of(tensors: AttentionTensors) -> Expected:
    """Return what the second output must be."""
    value = torch.empty(tensors.outputs["lse"].elements.shape, dtype=torch.float64)
    for block in row_blocks(tensors):
        logits = logits_of(block, tensors, RoundingModel()).exact.logsumexp(-1)
        value[:, block.tokens] = logits.permute(1, 3, 0, 2).flatten(0, 1)
    return Expected(value, torch.full_like(value, 1e-4), torch.ones(1, 1, dtype=torch.bool))


class TwoOutputs(Experiment):
    """An experiment that knows what the second output must be."""

    @cached_property
    def reference(self) -> Reference:
        """Both outputs."""
        return super().reference | {"lse": expected_of(self.left)}


class RecordedTwoOutputs(RecordedExperiment):
    """The same for an export."""

    @cached_property
    def reference(self) -> Reference:
        """Both outputs."""
        return super().reference | {"lse": expected_of(self.left)}


def attend(given: dict[str, Any], out: torch.Tensor, lse: torch.Tensor) -> None:
    """Write both outputs, one row after the other."""
    starts, lengths = given["cu_seqlens_q"].tolist(), given["seqused_k"].tolist()
    q, k, v, size = given["q"].double(), given["k"].double(), given["v"].double(), given["k"].shape[1]
    group = q.shape[1] // k.shape[2]
    for sequence, length in enumerate(lengths):
        places = torch.arange(length)
        pages = given["block_table"][sequence, places // size].long()
        keys, values = (cache[pages, places % size].repeat_interleave(group, 1) for cache in (k, v))
        for token in range(starts[sequence], starts[sequence + 1]):
            seen = length - starts[sequence + 1] + token + 1
            scores = torch.einsum("hd,khd->hk", q[token], keys[:seen]) * given["softmax_scale"]
            out[token] = torch.einsum("hk,khd->hd", scores.softmax(-1), values[:seen])
            lse[:, token] = scores.logsumexp(-1)


def writing(change: Change) -> Callable[..., None]:
    """Return a target that writes both outputs in place, and then changes the second one."""

    def attention_with_lse(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor,
        cu_seqlens_q: torch.Tensor,
        seqused_k: torch.Tensor,
        softmax_scale: float,
        block_table: torch.Tensor,
    ) -> None:
        attend(dict(locals()), out, lse)
        change(lse, int(cu_seqlens_q[-1]))

    return attention_with_lse


def target_of(call: Callable[..., object], **binding: Any) -> Target:
    return Target("two", call, Domain(features=frozenset()), binding=binding)


def experiment_of(case: AttentionCase, change: Change) -> TwoOutputs:
    """Return an experiment on a target that changes the second output."""
    return TwoOutputs(case, target_of(writing(change), roles={"lse": "lse"}), SimulatorBackend())


@pytest.fixture(autouse=True)
def _second_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OUTPUTS, "lse", made)
    monkeypatch.setitem(ROLES, "lse", Role("logarithm", (), lambda problem: problem.tensors.outputs["lse"].tensor))


def nothing(lse: torch.Tensor, tokens: int) -> None:
    """Leave the output right."""


def wrong(lse: torch.Tensor, tokens: int) -> None:
    lse[1, 2] += 0.01


def wrong_head(lse: torch.Tensor, tokens: int) -> None:
    lse[1, :tokens] = 7.0


def unwritten(lse: torch.Tensor, tokens: int) -> None:
    lse.view(torch.int32)[3, tokens - 1] = POISON - 2**32


def padded(lse: torch.Tensor, tokens: int) -> None:
    lse[2, tokens] = 0.0


def between(lse: torch.Tensor, tokens: int) -> None:
    lse.as_strided((1,), (1,), lse.shape[1] + 1)[:] = 0.0


def test_right_outputs_pass(case: AttentionCase) -> None:
    verdict = check(experiment_of(case, nothing))
    assert verdict.passed
    assert verdict.elements == case.num_tokens * 4 * (8 + 1)


@pytest.mark.parametrize(
    ("change", "property_name", "kind", "count"),
    [
        (wrong, "oracle", "mismatch", 1),
        (unwritten, "oracle", "unwritten", 1),
        (padded, "nothing_else_written", "written_outside", 4),
        (between, "nothing_else_written", "written_outside", 4),
    ],
)
def test_a_fault_in_the_second_output_is_found(
    case: AttentionCase, change: Change, property_name: str, kind: str, count: int
) -> None:
    experiment = experiment_of(case, change)
    (verdict,) = all_failures(experiment)
    assert (verdict.property_name, verdict.kind, verdict.output) == (property_name, kind, "lse")
    assert verdict.wrong <= count
    assert "lse" in verdict.message
    assert "-lse-" in signature_of(case, verdict)
    assert class_of(verdict).endswith(" lse")
    assert is_of_output(class_of(verdict)) == (property_name == "oracle")
    assert msgspec.json.decode(msgspec.json.encode(verdict), type=Verdict) == verdict


def test_an_output_without_a_reference_does_not_pass(case: AttentionCase) -> None:
    target = target_of(writing(nothing), roles={"lse": "lse"})
    with pytest.raises(AssertionError, match="would never be judged"):
        check(Experiment(case, target, SimulatorBackend()))


def test_the_place_of_a_wrong_element_is_by_its_axes(case: AttentionCase) -> None:
    verdict = check(experiment_of(case, wrong))
    (worst,) = verdict.worst
    assert (worst.token, worst.head, worst.column, worst.sequence, worst.query_index) == (2, 1, -1, 0, 2)
    assert verdict.where == "tail_rows"
    assert math.isclose(float(worst.actual) - float(worst.expected), 0.01, rel_tol=0.01)
    assert check(experiment_of(case, wrong_head)).where == "some_heads"


def test_the_first_output_is_named_too(case: AttentionCase) -> None:
    experiment = experiment_of(case, wrong)
    experiment.first.tensors.output[0, 0, 0] += 1.0
    verdict = judge(experiment.first.tensors, experiment.reference)
    assert (verdict.output, verdict.wrong, verdict.message[:5]) == ("out", 1, "out: ")


def test_elements_that_are_not_live_must_keep_their_bits(case: AttentionCase, monkeypatch: pytest.MonkeyPatch) -> None:
    live = torch.ones(1, case.num_tokens, dtype=torch.bool)
    live[0, 1] = False
    monkeypatch.setitem(OUTPUTS, "lse", lambda case, device: replace(made(case, device), live=live))
    verdict = check(experiment_of(case, nothing))
    assert (verdict.kind, verdict.output) == ("written_outside", "lse")

    def kept(lse: torch.Tensor, tokens: int) -> None:
        lse.view(torch.int32)[:, 1] = POISON - 2**32

    assert check(experiment_of(case, kept)).passed


def test_relations_compare_both_outputs(case: AttentionCase) -> None:
    exact, bounded = ("determinism", "poison_independence", "page_permutation"), ("batch_order", "head_permutation")
    launches = 0

    def second_launch_wrong(lse: torch.Tensor, tokens: int) -> None:
        nonlocal launches
        launches += 1
        lse[0, 0] += launches > 1

    for name in (*exact, *bounded):
        assert name in relations_of(case, Domain())
        assert check(experiment_of(case, nothing), name).passed, name
        launches = 0
        verdict = check(experiment_of(case, second_launch_wrong), name)
        assert (verdict.passed, verdict.output) == (False, "lse"), name
        assert "lse" in verdict.message


class OnDevice(TwoOutputs):
    """An experiment whose launches get copies of its tensors, as on a GPU."""

    def _is_on_backend(self, tensors: AttentionTensors) -> bool:
        return False


@pytest.mark.parametrize("change", [nothing, wrong, unwritten, padded, between])
def test_copies_are_judged_like_the_originals(case: AttentionCase, change: Change) -> None:
    here = experiment_of(case, change)
    assert all_failures(OnDevice(case, here.target, here.backend)) == all_failures(here)


def result_of(*values: object) -> Callable[..., object]:
    def attention(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cu_seqlens_q: torch.Tensor,
        seqused_k: torch.Tensor,
        softmax_scale: float,
        block_table: torch.Tensor,
    ) -> object:
        return values

    return attention


STATED: Final[dict[str, Any]] = {
    "output": "returned",
    "layout": "rows",
    "window": "keys",
    "scales": "tensor",
    "scale_direction": "multiply",
    "fp8": "typed",
    "roles": {"k": "key_cache", "v": "value_cache"},
}


def test_returned_outputs_are_taken_by_their_names(case: AttentionCase) -> None:
    tensors = materialise(case)
    lse, out = torch.full_like(tensors.outputs["lse"].tensor, 2.0), torch.full_like(tensors.output, 3.0)
    target = target_of(result_of(lse, out, lse), returns=("lse", "out"), **STATED)
    assert target.run(tensors).beyond == 1
    for name, number in (("lse", 2.0), ("out", 3.0)):
        assert bool((tensors.outputs[name].elements == number).all())
    assert bool(tensors.outputs["lse"].tensor[:, case.num_tokens :].isnan().all())
    with pytest.raises(ReturnedOutputError, match="returned 1 values where its binding promises lse, out"):
        target_of(result_of(lse), returns=("lse", "out"), **STATED).run(tensors)
    message = re.escape(f"the output lse is torch.float32 {list(lse.shape)}")
    with pytest.raises(ReturnedOutputError, match=message):
        target_of(result_of(out, out), returns=("lse", "out"), **STATED).run(tensors)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (unwritten, "query 0 of sequence 2, head 3 of the output lse: never written"),
        (padded, "row 4 of the output lse (behind the last token) is written, which the target must leave as they are"),
        (between, "1 element of memory between or around the rows of the output lse is written, from element 7 of"),
    ],
)
def test_explanations_name_the_second_output(case: AttentionCase, change: Change, words: str) -> None:
    lab = Lab(experiment_of(case, change), 1e9)
    findings = [*unwritten_findings(lab), *outside_findings(lab)]
    assert [finding.words[: len(words)] for finding in findings] == [words]


MODULE: Final = """
from typing import Any

import torch

{source}

def attention_with_lse(q, k, v, out, lse, cu_seqlens_q, seqused_k, softmax_scale, block_table):
    attend(dict(locals()), out, lse)
    {fault}
"""


@pytest.mark.parametrize(
    ("fault", "lines"),
    [
        ("pass", ["Output out", "Output lse", "Second call, a second launch on the same input", "right"]),
        (
            "lse[1, 2] += 0.01 + torch.rand(()); lse[2, 4] = 0.0",
            [
                "1 of 16 elements wrong, 0 never written",
                "   head  token          actual        expected       bound",
                "4 bytes of the output's memory that belong to no row were written",
                "1 (head, token) rows have other bits, the first at head 1, token 2",
                "WRONG",
            ],
        ),
    ],
)
def test_an_exported_script_checks_both_outputs(
    case: AttentionCase,
    fault: str,
    lines: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    kernel, script = tmp_path / "two.py", tmp_path / "script.py"
    kernel.write_text(MODULE.format(source=inspect.getsource(attend), fault=fault), encoding="utf-8")
    experiment = RecordedTwoOutputs(case, target_of(writing(nothing), roles={"lse": "lse"}), SimulatorBackend())
    expected = expectations(experiment, "determinism", "determinism")
    assert [list(each.outputs) for each in expected] == [["out", "lse"]] * 2
    found = counterexamples.signed(
        str(kernel), case.family, "determinism", case, Verdict("determinism", "different_bits")
    )
    script_of(found, expected, [Source(str(kernel), "attention_with_lse")] * 2).save(script)
    monkeypatch.setattr(sys, "argv", [str(script), "--device", "cpu"])
    monkeypatch.setattr(sys, "path", list(sys.path))  # to which the script appends the folder of the kernel
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(script), run_name="__main__")
    sys.modules.pop(kernel.stem)
    printed = capsys.readouterr().out
    assert [line for line in lines if line not in printed] == [], printed
    assert left.value.code == (0 if "right" in lines else 1)
