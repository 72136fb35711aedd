"""Exported scripts: they run without fuzz_attn, find a wrong kernel wrong and a right one right, in every family."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

import msgspec
import pytest
from click.testing import CliRunner

from fuzz_attn import counterexamples
from fuzz_attn.binding.binding import Binding
from fuzz_attn.case.attention_case import AttentionCase, replace
from fuzz_attn.case.domain import Domain
from fuzz_attn.case.families import FAMILIES
from fuzz_attn.case.parts import (
    CallForm,
    DTypes,
    FarAxis,
    HeadLayout,
    LaunchHints,
    PageLayout,
    Scales,
    Sequence,
    Strides,
)
from fuzz_attn.case.recipes import CAUSAL, AlibiRecipe, Custom, LogSumExp, Lookahead, PoisonRecipe, SinkRecipe
from fuzz_attn.cli.main import main
from fuzz_attn.errors import FuzzAttnError
from fuzz_attn.export.script import WIDTH, exported, wrapped
from fuzz_attn.mutation.edited_kernels import kernels_folder
from fuzz_attn.operations.calls.call_case import Call, CallSequence
from fuzz_attn.oracle.verdict import Verdict
from fuzz_attn.properties.relations import relations_of
from fuzz_attn.strategies.cases import cases
from fuzz_attn.strategies.draws import Sample
from fuzz_attn.targets.built_in import BUILT_IN_LAUNCHERS, built_in

Results: TypeAlias = Callable[..., dict[str, tuple[int, str]]]
HERE = Path(__file__).parent
SCRIPT = str(Path(sys.executable).with_name("fuzz-attn"))
LEAST = "q, k, v, out, cu_seqlens_q, seqused_k, softmax_scale, block_table"
TARGETS = HERE.parent / "sample_targets"
SPLIT = AttentionCase(
    sequences=(Sequence(1, 4), Sequence(1, 20)),
    family="paged",
    heads=HeadLayout(num_kv_heads=2, num_queries_per_kv=2, head_size=16),
    dtypes=DTypes(q="float16", kv="float16", out="float16"),
    pages=PageLayout(block_size=8, permuted=True, spare_blocks=1),
    strides=Strides(q_token=16, out_token=16, cache="blocks_first", cache_slot=16, block_table=3),
    poison=PoisonRecipe(keys="inf", values="huge"),
    window=5,
    alibi=AlibiRecipe(),
    sinks=SinkRecipe(),
    softmax_scale=0.25,
)
CASES: dict[str, AttentionCase] = {
    "paged": SPLIT,
    "context": replace(SPLIT, family="context", sequences=(Sequence(3, 4), Sequence(1, 20)), stale_cache=True),
    "chunked": replace(SPLIT, family="chunked", sequences=(Sequence(3, 4), Sequence(1, 20))),
    "unified": replace(SPLIT, family="unified", sequences=(Sequence(3, 4), Sequence(0, 7)), padded_tokens=1),
    "bytes": replace(
        SPLIT, dtypes=DTypes("float32", "float8_e5m2", "float32"), scales=Scales(k=0.5, v=2.0), uint8_cache=True
    ),
    "forms": replace(
        SPLIT,
        dtypes=DTypes("float32", "float8_e5m2", "float16"),
        scales=Scales(k=-0.5, v=2.0),
        strides=Strides(page_head=3, key_chunk=1, key_slot=2, value_dim=1, key_piece=2),
        alibi=AlibiRecipe(dtype="bfloat16"),
        sinks=SinkRecipe(dtype="float64"),
        form=CallForm("expanded", 1, 1, False, 1, 1),
    ),
    "extend": replace(
        SPLIT,
        family="extend",
        sequences=(Sequence(3, 4), Sequence(2, 20)),
        mask=Custom("tree"),
        alibi=None,
        strides=Strides(q_token=16, out_token=16, cache="kv_first", cache_slot=16),
    ),
    "mla_decode": replace(
        SPLIT, family="mla_decode", heads=HeadLayout(1, 4, 24, 16), strides=Strides(), window=0, alibi=None, sinks=None
    ),
    "varlen": replace(
        SPLIT,
        family="varlen",
        sequences=(Sequence(3, 4), Sequence(4, -2), Sequence(0, 5)),
        heads=HeadLayout(2, 2, 16, 24),
        pages=PageLayout(block_size=5, spare_blocks=1),
        mask=Lookahead(2),
        alibi=None,
        strides=Strides(q_token=16, out_token=16, cache_slot=16, value_slot=8),
    ),
}
CASES["token_decode"] = replace(
    CASES["extend"],
    family="token_decode",
    sequences=(Sequence(1, 4), Sequence(1, 20)),
    heads=HeadLayout(num_kv_heads=2, num_queries_per_kv=2, head_size=16, value_size=24),
    mask=CAUSAL,
    strides=Strides(q_token=16, out_token=16),
    launch=LaunchHints(path="3d", num_segments=3),
    ragged_splits=True,
)
WITH_LSE = replace(CASES["mla_decode"], lse=LogSumExp())
BROKEN = """

import functools

@functools.wraps({name})
def broken_{family}(*arguments, **given):
    {name}(*arguments, **given)
    out = given.get("out", given.get("output", given.get("o")))
    out[0, 0, 1] = 77.0
"""
MISBEHAVING = """
from functools import wraps
from itertools import count
from torch_attention import unified_attention
CALLS = count()

def around(change):
    @wraps(unified_attention)
    def variant(**given):
        unified_attention(**given)
        change(**given)
    return variant

def fail(seqused_k, **_):
    raise ValueError(f"longest={int(seqused_k.max())} is too long")

def flip(out, **_):
    out.view(dtype=__import__("torch").int32)[0, 0, 0] ^= next(CALLS)

raises = around(fail)
nondeterministic = around(flip)
writes_an_input = around(lambda q, **_: q.zero_())
writes_padded_rows = around(lambda out, **_: out[-1].zero_())
"""
RANGE: dict[str, Any] = {"property_name": "value_range"}
ONLY_SEEN: dict[str, Any] = {"property_name": "sanitizers", "kind": "race"}


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a folder with a copy of the kernels as the package ``standing``, right and broken, to import from."""
    folder = tmp_path_factory.mktemp("kernels")
    shutil.copytree(kernels_folder(), folder / "standing")
    for family, place in BUILT_IN_LAUNCHERS.items():
        module, _, name = place.partition(":")
        source = folder / "standing" / f"{module}.py"
        source.write_text(source.read_text() + BROKEN.format(name=name, family=family))
    shutil.copy(TARGETS / "torch_attention.py", folder)
    (folder / "misbehaving.py").write_text(MISBEHAVING)
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(folder)
        yield folder
    for name, loaded in [*sys.modules.items()]:
        if str(getattr(loaded, "__file__", None)).startswith(str(folder)):
            del sys.modules[name]


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    """Return a new folder for counterexamples and their scripts."""
    (tmp_path / "scripts").mkdir()
    return tmp_path / "scripts"


def save(
    folder: Path,
    name: str,
    spec: str,
    case: AttentionCase | CallSequence,
    relation: str | None = None,
    *,
    binding: Binding | None = None,
    **changes: str,
) -> None:
    """Save a counterexample to be exported."""
    fields = {"property_name": "oracle", "kind": "mismatch", "message": "as it was", **changes}
    family = case.last.family if isinstance(case, CallSequence) else case.family
    found = counterexamples.signed(spec, family, relation, case, msgspec.convert(fields, Verdict))
    found = msgspec.structs.replace(found, binding=binding)
    (folder / f"{name}.json").write_bytes(msgspec.json.encode(found))


def export(folder: Path) -> None:
    """Export each counterexample of a folder as a script beside it."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TRITON_INTERPRET", os.environ["TRITON_INTERPRET"])  # which this changes
        for path in sorted(folder.glob("*.json")):
            found = counterexamples.load(path)
            exported(found, found.target, found.binding).save(path.with_suffix(".py"))


@pytest.fixture
def results(run_program: Callable[..., Any], kernels: Path) -> Results:
    """Return a function that runs a folder's scripts where fuzz_attn cannot be imported.

    It returns the exit status and the output of each.
    """

    def run(folder: Path, *arguments: str) -> dict[str, tuple[int, str]]:
        done = run_program(HERE / "running_program.py", folder, *arguments, variables={"CUDA_VISIBLE_DEVICES": ""})
        assert done.returncode == 0, done.stdout + done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return {name: (status, text) for name, (status, text) in found.items()}

    return run


@pytest.mark.sampled(2)
@pytest.mark.parametrize("options", [(), ("--tight",)])
def test_scripts_of_each_family_find_the_bug_and_only_the_bug(
    options: tuple[str, ...], scripts: Path, results: Results
) -> None:
    chosen = {"unified", *[*CASES][len(options) :: 2]}
    for name in chosen:
        module, _, function = BUILT_IN_LAUNCHERS[CASES[name].family].partition(":")
        save(scripts, f"right_{name}", f"standing.{module}:{function}", CASES[name])
        save(scripts, f"broken_{name}", f"standing.{module}:broken_{CASES[name].family}", CASES[name])
    export(scripts)
    found = results(scripts, "--device", "cpu", *options)
    for name in chosen:
        assert found[f"right_{name}"] == (0, "right\n")
        status, text = found[f"broken_{name}"]
        assert status == 1
        assert text.splitlines()[0].startswith("1 of ")
        assert text.splitlines()[2].split()[:4] == ["0", "0", "1", "77"]
        assert text.endswith("WRONG\n")


def test_scripts_of_several_calls_find_what_a_target_keeps(scripts: Path, kernels: Path, results: Results) -> None:
    one, other = (AttentionCase((Sequence(1, 3), Sequence(2, last))) for last in (1, 0))
    keeping = shutil.copy(TARGETS / "keeping_calls.py", kernels)
    wrong = {
        "cached_by_pointer": CallSequence((Call(other), Call(one, "contents"))),
        "cached_by_shape": CallSequence((Call(other), Call(one))),
        "keeps_scratch": CallSequence((Call(one), Call(one))),
        "fails_after_an_error": CallSequence((Call(one, raises=1), Call(one))),
        "shares_scratch": CallSequence((Call(one), Call(other, alongside=6))),
    }
    memory = CallSequence((Call(one), Call(one, "again"), Call(other, "contents"), Call(one, "address")))
    for name, sequence in wrong.items():
        save(scripts, name, f"{keeping}:{name}", sequence)
        save(scripts, f"right_{name}", f"{keeping}:right_by_pointer", sequence)
    save(scripts, "right_memory", f"{keeping}:right_by_pointer", memory)
    export(scripts)
    found = results(scripts, "--device", "cpu")
    assert {name: status for name, (status, _) in found.items()} == {
        name: 0 if name.startswith("right") else 1 for name in found
    }, found
    assert "Call 2, other arguments, in the same storage\n" in found["cached_by_pointer"][1]
    in_streams = CallSequence((Call(one), Call(other, alongside=6, stream=True)))
    save(scripts, "streams", f"{keeping}:right_by_pointer", in_streams)
    with pytest.raises(FuzzAttnError, match="calls in two streams cannot be exported"):
        export(scripts)


def checkout_in(folder: Path, module: str) -> Path:
    """Return a new checkout with a module that has a right target."""
    checkout = folder / "checkout"
    checkout.mkdir()
    shutil.copy(TARGETS / "torch_attention.py", checkout / f"{module}.py")
    return checkout


def test_scripts_of_files_find_each_kind_of_failure(
    case: AttentionCase, scripts: Path, kernels: Path, results: Results, tmp_path: Path
) -> None:
    torch_attention, misbehaving = (f"{kernels / name}.py" for name in ("torch_attention", "misbehaving"))
    far = replace(case, pages=PageLayout(block_size=4, first_block=2**20), strides=Strides())
    far_output = replace(case, strides=Strides(far=("out_token",)))
    words = {
        "last_row_unwritten": "64 never written",
        "poison_leaks": "nan",
        "raises": "ValueError: longest=21 is too long",
        "writes_an_input": "the call changed its input q",
        "writes_padded_rows": " bytes of the output's memory that belong to no row were written",
        "nondeterministic": "(token, head) rows have other bits",
    }
    for name in words:
        spec = f"{torch_attention if name in ('last_row_unwritten', 'poison_leaks') else misbehaving}:{name}"
        save(scripts, name, spec, case, "determinism" if name == "nondeterministic" else None)
    right = f"{torch_attention}:unified_attention"
    save(scripts, "right_in_another_order", right, case, "batch_order")
    save(scripts, "right_far", right, far)
    checkout = checkout_in(tmp_path, "found_in_a_checkout")
    save(scripts, "right_in_a_checkout", f"{checkout}::found_in_a_checkout:unified_attention", case)
    form = CallForm(extra_table_rows=2, extra_output_rows=1)
    axes: tuple[FarAxis, ...] = (
        "q_token",
        "q_head",
        "out_token",
        "out_head",
        "block_table",
        "cache_slot",
        "cache_head",
    )
    for name in axes:
        save(scripts, f"right_far_{name}", right, replace(case, strides=Strides(far=(name,)), form=form))
    save(scripts, "writes_far_padding", f"{misbehaving}:writes_padded_rows", far_output)
    save(scripts, "right_range", right, case, **RANGE)
    save(scripts, "right_seen", right, case, **ONLY_SEEN)
    export(scripts)
    found = results(scripts, "--device", "cpu")
    assert {name: status for name, (status, _) in found.items()} == {
        name: 0 if name.startswith("right") else 1 for name in found
    }
    assert {name for name, text in words.items() if text not in found[name][1]} == set()
    assert found["right_in_another_order"][1] == "Second call, a launch of the batch in reverse order\nright\n"
    assert found["right_seen"][1] == (
        "Only a memory checker sees this: as it was\nThe outputs are right. That does not mean that the kernel is.\n"
    )
    # Where the lines of a docstring end depends on the length of the path of this test's folder.
    seen, ranged = (" ".join((scripts / f"right_{name}.py").read_text().split()) for name in ("seen", "range"))
    assert "Its exit status does not tell whether the kernel is still wrong" in seen
    assert "It exits with 1 while the kernel is wrong" in ranged


def test_scripts_say_why_and_what_the_failure_needs(case: AttentionCase, scripts: Path, kernels: Path) -> None:
    why = "window: query 0 of sequence 0 attends key 1"
    save(scripts, "a", f"{kernels / 'torch_attention.py'}:poison_leaks", case, explanation=why)
    found = counterexamples.load(scripts / "a.json")
    needing = msgspec.structs.replace(found, trigger=("sliding window", "at least 2 keys"))
    (scripts / "a.json").write_bytes(msgspec.json.encode(needing))
    export(scripts)
    docstring = ast.get_docstring(ast.parse((scripts / "a.py").read_text())) or ""
    assert f"\nWhy: {why}\nNeeds: sliding window, at least 2 keys\n" in docstring


def test_script_says_what_is_missing(case: AttentionCase, scripts: Path, tmp_path: Path) -> None:
    checkout = checkout_in(tmp_path, "in_a_checkout")
    save(scripts, "a", f"{checkout}::in_a_checkout:unified_attention", case)
    export(scripts)
    (checkout / "in_a_checkout.py").unlink()
    done = subprocess.run([sys.executable, scripts / "a.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == (
        f"cannot import in_a_checkout of {checkout}: ModuleNotFoundError: No module named 'in_a_checkout'"
    )


RETURNING = """
from invented_names import ragged_paged

def other_shape(asks, key_pages, value_pages, where, token_offsets, lens, temperature, reach=-1):
    return ragged_paged(asks, key_pages, value_pages, where, token_offsets, lens, temperature, reach).flatten(1)

def in_a_tuple(asks, key_pages, value_pages, where, token_offsets, lens, temperature, reach=-1):
    return ragged_paged(asks, key_pages, value_pages, where, token_offsets, lens, temperature, reach), None
"""


@pytest.mark.slow
def test_scripts_call_targets_that_return_their_output(scripts: Path, kernels: Path, results: Results) -> None:
    stated = msgspec.toml.decode((TARGETS / "invented_names.toml").read_bytes())
    conventions = {"layout": "heads_first", "output": "returned", "window": "left", "scales": "float", "fp8": "typed"}
    binding = msgspec.convert({**stated, **conventions, "scale_direction": "divide"}, Binding)
    case = replace(CASES["unified"], alibi=None, sinks=None)
    shutil.copy(TARGETS / "invented_names.py", kernels)
    (kernels / "returning.py").write_text(RETURNING)
    names = {"invented_names": ("ragged_paged", "half_too_large"), "returning": ("other_shape", "in_a_tuple")}
    for file, functions in names.items():
        for name in functions:
            save(scripts, name, f"{kernels / file}.py:{name}", case, binding=binding)
    save(scripts, "order", f"{kernels / 'invented_names'}.py:ragged_paged", case, "batch_order", binding=binding)
    export(scripts)
    found = results(scripts, "--device", "cpu")
    assert (found["ragged_paged"], found["in_a_tuple"]) == ((0, "right\n"), (0, "right\n"))
    assert found["order"] == (0, "Second call, a launch of the batch in reverse order\nright\n")
    assert found["half_too_large"][0] == found["other_shape"][0] == 1
    assert " elements wrong, 0 never written\n" in found["half_too_large"][1]
    assert (
        "the call returned torch.float16 [4, 64] where the output is torch.float16 [4, 4, 16]"
        in found["other_shape"][1]
    )


@pytest.mark.slow
def test_right_kernels_are_right_in_scripts_of_drawn_cases(scripts: Path, results: Results) -> None:
    """Of what the kernels promise, with one of four relations in turn, and with large tensors in a file beside it."""
    random = Random(14)
    launchers = [*BUILT_IN_LAUNCHERS.items()][1::2]
    for at, (family, place) in enumerate(launchers):
        target = built_in(family)
        assert target is not None
        domain, cache = target.domain, FAMILIES[family].cache
        # Values of a latent cache cannot change alone, and it has no scales. Packed keys have neither pages nor scales.
        plain = cache.is_latent or cache.is_packed
        own = ("batch_order", "head_permutation") if plain else ("unit_scales", "value_shift")
        relations = ("poison_independence", "value_shift" if cache.is_packed else "page_permutation", *own)
        relation = relations[at % 4]
        save(scripts, f"{family}_{relation}", f"standing.{place}", drawn(domain, relation, random), relation)
    export(scripts)
    assert list(scripts.glob("*.safetensors"))
    found = results(scripts, "--device", "cpu")
    assert len(found) == len(launchers)
    assert {name: text for name, (status, text) in found.items() if status} == {}


BROKEN_LSE = """
from functools import wraps
from standing.mla_decode import mla_decode

@wraps(mla_decode)
def broken_lse(*arguments, **given):
    mla_decode(*arguments, **given)
    given["lse"][1, 2] += 0.5
"""


@pytest.mark.slow
def test_scripts_check_a_log_sum_exp(scripts: Path, kernels: Path, results: Results) -> None:
    (kernels / "lse_decode.py").write_text(BROKEN_LSE)
    for relation in (None, "page_permutation", "batch_order"):
        for name in ("mla_decode", "broken_lse"):
            save(scripts, f"{name}_{relation}", f"lse_decode:{name}", WITH_LSE, relation)
    no_key = replace(WITH_LSE, sequences=(*WITH_LSE.sequences, Sequence(1, -1)))
    save(scripts, "row_without_keys", "lse_decode:mla_decode", no_key, None)
    export(scripts)
    found = results(scripts, "--device", "cpu")
    assert {name: status for name, (status, _) in found.items()} == {name: int("broken" in name) for name in found}
    out, lse = found["broken_lse_None"][1].split("Output lse\n")
    assert out == "Output out\n"
    assert lse.startswith("1 of 8 elements wrong")


def test_an_output_that_the_target_does_not_write_is_refused_in_one_line(scripts: Path, kernels: Path) -> None:
    save(scripts, "a", "standing.unified_attention:unified_attention", replace(CASES["unified"], lse=LogSumExp()))
    with pytest.raises(FuzzAttnError, match="the case has the output 'lse', which target"):
        export(scripts)


def drawn(domain: Domain, relation: str, random: Random) -> AttentionCase:
    """Return a case for which the relation holds, and which Triton's interpreter runs quickly and rightly."""
    while True:
        case = Sample(random).draw(cases(domain))
        few = case.num_tokens * case.heads.num_query_heads * case.max_seq_len < 150
        exact = {case.dtypes.q, case.dtypes.out} <= {"float32", "float16"}
        if few and exact and relation in relations_of(case, domain):
            return case


def test_target_of_a_declaration_needs_the_declaration(scripts: Path, kernels: Path) -> None:
    (kernels / "declared.py").write_text(
        "from fuzz_attn.targets import Target\nfrom standing.unified_attention import unified_attention\n"
        "mine = Target('mine', unified_attention)\n\n"
        f"wrapped = Target('wrapped', lambda {LEAST}: None)\n"
    )
    save(scripts, "mine", "declared:mine", replace(CASES["unified"], alibi=None, sinks=None, window=0))
    save(scripts, "wrapped", "declared:wrapped", replace(CASES["unified"], alibi=None, sinks=None, window=0))
    export(scripts)
    assert "from standing.unified_attention import unified_attention" in (scripts / "mine.py").read_text()
    assert "from declared import wrapped\n\n    return wrapped.call" in (scripts / "wrapped.py").read_text()


def test_command_writes_the_script(scripts: Path, kernels: Path) -> None:
    save(scripts, "a", f"{kernels / 'torch_attention.py'}:last_row_unwritten", CASES["unified"])
    command = ["export", str(scripts / "a.json"), "--script", str(scripts / "b.py")]
    refused = CliRunner().invoke(main, command)
    assert refused.exit_code == 2
    assert "a file does not choose what code runs" in refused.stderr
    assert not (scripts / "b.py").exists()
    done = CliRunner().invoke(main, [*command, "--trust"])
    assert (done.exit_code, done.stdout) == (0, f"written  {scripts / 'b.py'}\n"), done.stderr
    assert (scripts / "b.py").read_text().startswith('r"""A wrong result of last_row_unwritten of ')


def test_a_failure_of_few_values_is_refused_in_one_line(scripts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which keys its second launch keeps follows from the output of the first: a script has no oracle to tell."""
    monkeypatch.setenv("TRITON_INTERPRET", os.environ["TRITON_INTERPRET"])  # which the command changes
    save(scripts, "a", "unified", CASES["unified"], property_name="few_values")
    command = ["export", str(scripts / "a.json"), "--script", str(scripts / "b.py"), "--trust"]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 2
    assert "property='few_values' cannot be exported: " in result.stderr
    assert result.stderr.endswith("; replay the counterexample instead\n")
    assert result.stderr.count("\n") == 1
    assert not (scripts / "b.py").exists()


def test_file_that_is_missing_is_one_line(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["export", str(tmp_path / "gone.json"), "--script", str(tmp_path / "x.py")])
    assert result.exit_code == 2
    assert result.stderr == f"fuzz-attn: {tmp_path / 'gone.json'}: cannot be read: No such file or directory\n"


HOSTILE = (
    '"""\nopen("canary", "w")\n"""',
    "x" * (WIDTH - 1) + '"""; open("canary", "w")',
    '\\"""\\',
    '"' * 7,
    'ends with "',
    "\\",
    "a\rb\x0cc\x85d\u2028open('canary', 'w')",
)


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_of_a_file_leaves_the_docstring_of_a_script(text: str) -> None:
    (statement,) = ast.parse("\n".join(('r"""A wrong result', *wrapped(text, "  "), '"""'))).body
    assert isinstance(statement, ast.Expr)
    assert isinstance(statement.value, ast.Constant)
