"""Loading targets: what a specification may name, and the error for one that does not load or fit."""

import re
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from fuzz_attn.binding.binding import Binding
from fuzz_attn.binding.promises import not_drawn
from fuzz_attn.case.aspect_table import sentences
from fuzz_attn.case.aspects import FEATURES_OF, Feature
from fuzz_attn.case.attention_case import AttentionCase
from fuzz_attn.case.families import FAMILIES, Family
from fuzz_attn.case.parts import Sequence
from fuzz_attn.errors import TargetError
from fuzz_attn.foreign_files import ENTRY_POINT_GROUP
from fuzz_attn.inputs.tensors import materialise
from fuzz_attn.targets import loading, process_state
from fuzz_attn.targets.built_in import BUILT_IN_NAMES
from fuzz_attn.targets.loading import as_target, load_target, target_names
from fuzz_attn.targets.target import Target, slug_of

FOLDER = Path(__file__).parents[1] / "sample_targets"
TORCH, MISBEHAVING = FOLDER / "torch_attention.py", FOLDER / "misbehaving.py"

BAD_SPECS = {
    "nonsense": "target='nonsense' must be module:function, path.py:function or one of: unified",
    "": "target='' must be module:function, path.py:function or one of: unified",
    "missing.py:attend": "target file 'missing.py' does not exist",
    "no_such_module:attend": (
        "target='no_such_module:attend' does not import: ModuleNotFoundError: No module named 'no_such_module'"
    ),
    ":attend": "target=':attend' does not import: ValueError: Empty module name",
    "math:": "target='math:': math has no ''",
    "math:attend": "target='math:attend': math has no 'attend'",
    "math:pi": "target='math:pi' must be callable, and is a float",
    "math:hypot": "target='math:hypot' has no signature that could be read: no signature found for builtin",
    f"{FOLDER / 'broken_import.py'}:attend": "does not import: RuntimeError: no GPU here",
    f"{MISBEHAVING}:not_callable": "must be callable, and is a int",
    f"{MISBEHAVING}:fits_no_family": (
        "has no parameter for query_start_loc or query_lens, seq_lens or context_lens or kv_indptr or key_start_loc, "
    ),
    f"{MISBEHAVING}:positional_only": (
        "requires k, q, v as positional-only arguments, which a binding cannot pass by name"
    ),
    f"{MISBEHAVING}:requires_unknown_argument": (
        "requires parameter 'workspace', which has no role; state it in a binding file, as [roles] workspace = ROLE, "
        "or under [constants], [tensors] or [sizes]. No parameter has the role "
    ),
}


LEAST = "q, k, v, out, cu_seqlens_q, seqused_k, softmax_scale, block_table"
"""The parameters that the unified family requires."""


@pytest.mark.parametrize("spec", BAD_SPECS)
def test_bad_specification_raises_one_line(spec: str) -> None:
    with pytest.raises(TargetError) as raised:
        load_target(spec)
    assert BAD_SPECS[spec] in str(raised.value)
    assert "\n" not in str(raised.value)


def test_file_may_import_files_beside_it() -> None:
    target = load_target(f"{MISBEHAVING}:without_sinks")
    assert target.name == f"{MISBEHAVING}:without_sinks"
    assert target.family == "unified"


def test_file_is_relative_to_the_current_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FOLDER)
    assert load_target("torch_attention.py:unified_attention").slug == "torch_attention.py-unified_attention"


def test_module_is_found_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "attention_of_a_module.py").write_text(
        f"class Holder:\n    @staticmethod\n    def attend({LEAST}): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert load_target("attention_of_a_module:Holder.attend").family == "unified"


def test_files_with_the_same_name_are_two_modules(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same.py").write_text(f"def attend({LEAST}):\n    return {folder!r}\n")
    found = [load_target(f"{tmp_path / folder / 'same.py'}:attend") for folder in ("one", "two")]
    assert [target.call(*range(8)) for target in found] == ["one", "two"]


def test_torch_defaults_of_a_target_do_not_leak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_state, "_left_by_targets", None)
    path = tmp_path / "modern.py"
    path.write_text(
        "import torch\ntorch.set_default_device('meta')\ntorch.set_default_dtype(torch.float16)\nSEEN = []\n"
        "def attend(**given):\n    SEEN.append((torch.zeros(1), given))\n"
    )
    target = load_target(f"{path}:attend", "unified")
    target.run(materialise(AttentionCase((Sequence(1),))))
    assert process_state.current()[:2] == (torch.float32, torch.device("cpu"))
    ((made, given),) = target.call.__globals__["SEEN"]
    assert (made.dtype, made.device.type) == (torch.float16, "meta")
    assert {value.device.type for value in given.values() if isinstance(value, torch.Tensor)} == {"cpu"}


def test_target_object_keeps_its_own_domain(tmp_path: Path) -> None:
    path = tmp_path / "declared.py"
    path.write_text(
        "from fuzz_attn.case.domain import Domain\nfrom fuzz_attn.targets import Target\n"
        f"def attend({LEAST}): ...\ntarget = Target('mine', attend, domain=Domain(head_sizes=(64, 128)))\n"
    )
    target = load_target(f"{path}:target")
    assert (target.name, target.domain.head_sizes) == ("mine", (64, 128))


DECLARED = "from fuzz_attn.targets import Domain, Target\n"


def test_declared_domain_has_the_features_of_the_signature(tmp_path: Path) -> None:
    path = tmp_path / "declared.py"
    path.write_text(f"{DECLARED}def attend({LEAST}, sinks=None): ...\ntarget = Target('mine', attend)\n")
    always = {"strides", "empty_sequences", "padded_tokens", "large_offsets"}
    assert load_target(f"{path}:target").domain.features == always | {"sinks"}


@pytest.mark.parametrize(
    ("domain", "message"),
    [
        ("features={'sinks', 'alibi'}", "domain.features names alibi, which its signature lacks; it has bias_dtypes"),
        ("features={'slopes'}", r"domain.features=\['slopes'\] has no 'slopes': choose among alibi"),
        (
            "family='paged', features={'softcap'}",
            "domain.features names softcap, which its signature lacks; it has bias_dtypes",
        ),
        ("paths=('2d', '3d')", r"domain.paths=\('2d', '3d'\) needs a signature with num_segments, or seq_threshold"),
        ("tile_hint=True", "domain.tile_hint=True needs a signature with tile_size"),
        ("head_sizes=()", r"domain.head_sizes=\(\) must be ascending sizes from 1 to 1024"),
    ],
)
def test_domain_that_does_not_fit_is_refused_in_one_line(domain: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "declared.py"
    function = f"def attend({LEAST}, sinks=None): ...\n"
    path.write_text(f"{DECLARED}{function}target = Target('mine', attend, domain=Domain({domain}))\n")
    with pytest.raises(TargetError, match=f"^target='{path}:target' {message}") as raised:
        load_target(f"{path}:target")
    assert "\n" not in str(raised.value)


def point(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, value, ENTRY_POINT_GROUP)


def test_entry_points_are_targets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "package_with_a_kernel.py").write_text(f"def attend({LEAST}): ...\nnothing = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    points = {
        "theirs": point("theirs", "package_with_a_kernel:attend"),
        "gone": point("gone", "package_that_is_gone:attend"),
        "renamed": point("renamed", "package_with_a_kernel:other"),
        "number": point("number", "package_with_a_kernel:nothing"),
    }
    monkeypatch.setattr(loading, "target_points", lambda: tuple(points.values()))
    assert target_names() == (*BUILT_IN_NAMES, "theirs", "gone", "renamed", "number")
    assert load_target("theirs").name == "theirs"
    for name, message in {
        "gone": r"target='gone' \(entry point package_that_is_gone:attend\) does not load: No module named",
        "renamed": r"target='renamed' \(entry point package_with_a_kernel:other\) does not load: module .* has no attr",
        "number": r"target='number' must be callable, and is a int",
        "unknown": rf"or one of: {', '.join(BUILT_IN_NAMES)}, theirs, gone, renamed, number",
    }.items():
        with pytest.raises(TargetError, match=message):
            load_target(name)


def test_a_package_that_is_installed_meanwhile_is_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    assert "planted" not in target_names()
    package = tmp_path / "planted-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: planted\nVersion: 1\n")
    (package / "entry_points.txt").write_text(f"[{ENTRY_POINT_GROUP}]\nplanted = numpy:dot\n")
    assert "planted" in target_names()


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("unified", "unified"),
        ("a.b:attend", "a.b-attend"),
        ("../my kernels/x.py:attend", "my-kernels-x.py-attend"),
        ("/abs/x.py:A.attend", "abs-x.py-A.attend"),
        ("...", "target"),
    ],
)
def test_slug_is_a_folder_name(name: str, slug: str) -> None:
    assert slug_of(name) == slug
    assert re.fullmatch(r"[\w.-]+", slug)
    assert Target(name, print).slug == slug


def features_of(family: Family) -> frozenset[Feature]:
    """Return the features of a built-in target: few have a log-sum-exp and values of another size than keys."""
    has_all = family in ("mla_decode", "token_decode", "varlen")
    return FEATURES_OF[family] if has_all else FEATURES_OF[family] - {"lse", "head_size_v"}


@pytest.mark.parametrize("name", BUILT_IN_NAMES)
def test_built_in_target_has_every_feature_of_its_family(name: str) -> None:
    target = load_target(name)
    assert (target.name, target.family) == (name, name)
    assert target.domain.features == features_of(target.family)
    assert target.match.published


def test_built_in_target_takes_no_binding() -> None:
    said = re.escape("binding={'layout': 'rows'} must not be stated for target='paged', which is built in")
    with pytest.raises(TargetError, match=said):
        load_target("paged", binding=Binding(layout="rows"))


COPIES = """from dataclasses import replace
from fuzz_attn.targets import Target
from fuzz_attn.targets.built_in import built_in
own = built_in({family!r})
copied, renamed = Target("mine", own.call, own.domain), replace(own, name="mine")
"""


@pytest.mark.parametrize("family", FAMILIES)
def test_a_copy_of_a_built_in_domain_keeps_its_features(family: Family, tmp_path: Path) -> None:
    path = tmp_path / "copies.py"
    path.write_text(COPIES.format(family=family))
    for name in ("copied", "renamed"):
        target = load_target(f"{path}:{name}")
        assert target.domain.features == target.promised == features_of(family)
    assert load_target(f"{path}:own").domain == load_target(family).domain


def test_why_features_are_not_drawn() -> None:
    """Only what a signature lacks, a domain leaves out, no signature promises, a calibration or a backend refuses."""
    binding = Binding(promises=("bias_dtypes",), domain={"excluded": (("sinks",),)})
    target = as_target(attend_with(f"{LEAST}, alibi_slopes=None, sinks=None, cu_seqlens_k=None"), "mine", None, binding)
    drawn = replace(target.domain, features=target.domain.features - {"alibi"}).in_memory()
    found = not_drawn(target.domain, drawn, target.match.binding)
    assert found == {
        **dict.fromkeys(("window", "softcap", "qq_bias", "fp8_q", "fp8_kv", "fp8_out", "lse"), "no parameter"),
        **dict.fromkeys(
            ("scale_signs", "mixed_dtypes", "inner_strides", "call_forms", "far_axes", "head_size_v"), "not promised"
        ),
        "sinks": "left out",
        "alibi": "refused",
        "large_offsets": "backend",
    }
    assert target.promised == {"bias_dtypes"}
    assert next(sentences(found)).startswith("sliding window, soft cap, bias between new tokens, fp8 queries, ")


def attend_with(parameters: str) -> object:
    """Return a function with the given parameters that does nothing."""
    names: dict[str, object] = {}
    exec(f"def attend({parameters}): pass", names)
    return names["attend"]


def test_a_promise_without_a_parameter_is_refused() -> None:
    with pytest.raises(TargetError, match=r"domain\.features names softcap, which its signature lacks"):
        as_target(attend_with(LEAST), "mine", None, Binding(promises=("softcap",)))
