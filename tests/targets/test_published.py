"""Targets of packages that are not installed: checkouts and wheels, stubs for what they lack, answers about the GPU."""

from __future__ import annotations

import importlib
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from fuzz_attn.binding.binding import binding_of
from fuzz_attn.errors import TargetError
from fuzz_attn.targets.gpu_answers import CAPABILITY, MULTIPROCESSORS, gpu_answers
from fuzz_attn.targets.importing import Answers, Folder, Stub, answers_of, import_published
from fuzz_attn.targets.loading import CheckoutPlace, WheelPlace, known_binding, load_target, place_of, with_known
from fuzz_attn.targets.wheel import Wheel

LAUNCHER = """
from sample_project import _C as compiled
from sample_project.config import settings
from sample_project.extras import nothing_here
from sample_project.helpers import twice
from sample_project.platforms import current_platform


@nothing_here.decorator
def paged_attention_decode(output, query, key_cache, value_cache, block_table, seq_lens):
    assert twice(1) == 2 and not current_platform.is_rocm() and not settings.debug
"""
FILES = {
    "sample_project/__init__.py": "raise RuntimeError('too heavy to import')",
    "sample_project/config.py": "import a_package_that_is_not_installed",
    "sample_project/helpers/__init__.py": "def twice(number): return 2 * number",
    "sample_project/ops/__init__.py": "raise RuntimeError('too heavy to import')",
    "sample_project/ops/attention.py": LAUNCHER,
    "sample_project/ops/broken.py": "1 / 0",
}
METADATA = {
    "METADATA": "Metadata-Version: 2.1\nName: sample-project\nVersion: 1.0\n",
    "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "RECORD": "",
}
MODULE = "sample_project.ops.attention"


@pytest.fixture(autouse=True)
def import_system() -> Iterator[None]:
    """Forget the sample project after each test."""
    before = [*sys.meta_path]
    yield
    sys.meta_path[:] = before
    for name in [name for name in sys.modules if name.partition(".")[0] == "sample_project"]:
        del sys.modules[name]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a folder with a project that cannot be imported as it is."""
    folder = tmp_path / "checkout"
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.fixture
def load(checkout: Path) -> Callable[[str], ModuleType]:
    return lambda module: import_published(Folder(checkout), module, answers_of("sample_project"))


@pytest.mark.parametrize(
    ("spec", "place"),
    [
        ("vllm==0.33.0:vllm.ops:f", WheelPlace("vllm", "0.33.0", "vllm.ops", "f")),
        ("a-b==1.0.post1:a_b:C.f", WheelPlace("a-b", "1.0.post1", "a_b", "C.f")),
        ("module:function", None),
        ("path/to/file.py:function", None),
        ("unified", None),
    ],
)
def test_place_of_a_specification(spec: str, place: WheelPlace | None) -> None:
    assert place_of(spec) == place


def test_place_in_a_checkout(tmp_path: Path) -> None:
    assert place_of(f"{tmp_path}::a.b:f") == CheckoutPlace(tmp_path, "a.b", "f")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("vllm==0.33.0", "must be PACKAGE==VERSION:module:function"),
        ("vllm==0.33.0:ops", "must be PACKAGE==VERSION:module:function"),
        ("vllm>==1:ops:f", "with one exact version"),
        ("vllm==:ops:f", "with one exact version"),
        ("no/such/folder::a:f", "folder 'no/such/folder' does not exist"),
        (".::a", "must be FOLDER::module:function"),
    ],
)
def test_incomplete_specification_is_one_clear_line(spec: str, words: str) -> None:
    with pytest.raises(TargetError, match=words):
        place_of(spec)


def test_launcher_of_a_checkout_loads_with_stubs(checkout: Path) -> None:
    target = load_target(f"{checkout}::{MODULE}:paged_attention_decode")
    assert target.family == "paged"
    target.call(*[None] * 6)


def test_launcher_of_a_wheel_loads_without_the_network(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUZZ_ATTN_CACHE", str(tmp_path / "cache"))
    folder = Wheel("sample-project", "1.0").folder
    folder.mkdir(parents=True)
    with zipfile.ZipFile(folder / "sample_project-1.0-py3-none-any.whl", "w") as archive:
        for path in checkout.rglob("*.py"):
            archive.write(path, path.relative_to(checkout))
    target = load_target(f"sample-project==1.0:{MODULE}:paged_attention_decode")
    target.call(*[None] * 6)
    source = sys.modules[MODULE].__file__
    assert source == str(folder / "files" / "sample_project" / "ops" / "attention.py")  # Triton reads a kernel's source


def test_whole_wheel_is_downloaded_where_the_index_serves_no_ranges(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUZZ_ATTN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with zipfile.ZipFile(tmp_path / "sample_project-1.0-py3-none-any.whl", "w") as archive:
        archive.write(checkout / "sample_project" / "ops" / "attention.py", "sample_project/ops/attention.py")
        for name, text in METADATA.items():
            archive.writestr(f"sample_project-1.0.dist-info/{name}", text)
    wheel = Wheel("sample-project", "1.0")  # its address is a file, which no range request can read
    path = wheel.file("sample_project/ops/attention.py")
    assert path is not None
    assert path.read_text() == LAUNCHER
    assert wheel.file("sample_project/absent.py") is None


def test_wheel_that_does_not_exist_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUZZ_ATTN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(TargetError, match=r"no-such-package==1\.0 cannot be downloaded: ERROR: No matching"):
        load_target("no-such-package==1.0:a:f")


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_cache_that_others_may_write_to_is_not_used(mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "published").mkdir()
    (tmp_path / "published").chmod(mode)
    monkeypatch.setenv("FUZZ_ATTN_CACHE", str(tmp_path))
    with pytest.raises(TargetError, match="the cache cannot be used: other users may write to"):
        Wheel("sample-project", "1.0")


def test_target_that_does_not_import_says_why(load: Callable[[str], ModuleType]) -> None:
    with pytest.raises(TargetError, match=r"'sample_project\.ops\.broken' does not import: ZeroDivisionError"):
        load("sample_project.ops.broken")


def test_target_that_is_not_there_says_so(load: Callable[[str], ModuleType]) -> None:
    with pytest.raises(TargetError, match=r"no module named 'sample_project\.ops\.absent'"):
        load("sample_project.ops.absent")


def test_module_that_fails_to_import_is_a_stub_that_says_why(load: Callable[[str], ModuleType]) -> None:
    load(MODULE)
    assert "a_package_that_is_not_installed" in str(sys.modules["sample_project.config"].__doc__)


@pytest.mark.parametrize(
    ("init", "runs"),
    [
        ("import sys; sys.sample_runs += 1", 0),
        ("import sys; sys.sample_runs += 1; from sample_project.helpers import twice as helpers", 1),
        ("import sys; sys.sample_runs += 1; from sample_project.names import *", 1),
    ],
    ids=["does not name it", "gives the name to a function", "imports any names"],
)
def test_a_submodule_needs_no_package_that_does_not_name_it(
    init: str, runs: int, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "sample_runs", 0, raising=False)
    (checkout / "sample_project/__init__.py").write_text(init)
    (checkout / "sample_project/names.py").write_text("from sample_project.helpers import twice as helpers\n")
    (checkout / "sample_project/ops/attention.py").write_text("from sample_project import helpers\n")
    module = import_published(Folder(checkout), MODULE, answers_of("sample_project"))
    assert sys.sample_runs == runs  # type: ignore[attr-defined] # set above
    assert isinstance(module.helpers, ModuleType) == (not runs), "what the package says is believed"


def test_imported_package_is_not_replaced(load: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sample_project", ModuleType("sample_project"))
    with pytest.raises(TargetError, match="already imported"):
        load(MODULE)


def test_stubs_of_vllm_have_its_answers(tmp_path: Path) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "kernel.py").write_text("from vllm.platforms import current_platform\n")
    try:
        platform = import_published(Folder(tmp_path), "vllm.kernel", answers_of("vllm")).current_platform
        assert platform.fp8_dtype() is torch.float8_e4m3fn
        assert platform.is_cuda()
        assert not platform.is_rocm()
        assert importlib.import_module("vllm.config.cache").get_kv_cache_dtype_handler("auto") is None
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
            del sys.modules[name]


@pytest.mark.parametrize(("name", "value"), [("HAS_GPU", False), ("is_tpu", False), ("name", None)])
def test_a_stub_answers_questions_with_no(name: str, value: object, load: Callable[[str], ModuleType]) -> None:
    load(MODULE)
    found = getattr(sys.modules["sample_project.platforms"], name)
    answer = found() if name == "is_tpu" else found
    assert not answer
    assert value is None or answer is value


def test_a_loop_over_a_stub_ends() -> None:
    stub = Stub("a.b", Answers())
    assert list(stub) == []
    assert len(stub) == 0
    ones, twos = [1], [2]
    assert stub + ones == ones
    assert twos + stub == twos


def test_a_package_is_told_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAMPLE_VENDOR", "to be restored")
    monkeypatch.delenv("SAMPLE_VENDOR")
    (tmp_path / "sample_project.py").write_text("import os\nvendor = os.environ['SAMPLE_VENDOR']\ndevice = 'cuda'\n")
    answers = Answers(environment={"SAMPLE_VENDOR": "nvidia"}, without_gpu={"sample_project": {"device": "cpu"}})
    with gpu_answers():
        module = import_published(Folder(tmp_path), "sample_project", answers)
    assert (module.vendor, module.device) == ("nvidia", "cpu")


def test_files_that_a_package_finds_by_itself_are_downloaded(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUZZ_ATTN_CACHE", str(tmp_path / "cache"))
    tree = Wheel("sample-project", "1.0")
    tree.folder.mkdir(parents=True)
    with zipfile.ZipFile(tree.folder / "sample_project-1.0-py3-none-any.whl", "w") as archive:
        for path in checkout.rglob("*.py"):
            archive.write(path, path.relative_to(checkout))
    tree.provide("sample_project/helpers/")
    files = [path.relative_to(tree.folder / "files") for path in (tree.folder / "files").rglob("*.py")]
    assert files == [Path("sample_project/helpers/__init__.py")]


def test_what_is_known_of_a_published_launcher() -> None:
    known = known_binding(place_of("vllm==0.33.0:vllm.v1.attention.ops.triton_unified_attention:unified_attention"))
    assert known is not None
    assert known.domain["output_dtypes"] == ("float32", "float16", "bfloat16", "float8_e4m3fn")
    assert known_binding(place_of("vllm==0.33.0:vllm.attention:other")) is None
    assert known_binding(None) is None
    place = place_of("vllm==0.33.0:vllm.v1.attention.ops.triton_decode_attention:decode_attention_fwd")
    found = {family: known_binding(place, family) for family in (None, "paged", "mla_decode", "unified")}
    families = [known.family if known is not None else None for known in found.values()]
    assert families == ["paged", "paged", "mla_decode", "paged"]


def test_what_a_user_states_wins_over_what_is_known() -> None:
    known = binding_of(
        {"family": "paged", "constants": {"a": 1, "b": 2}, "window": "left", "domain": {"segments": [2]}}
    )
    stated = binding_of({"roles": {"a": "window"}, "window": "keys", "domain": {"dtypes": ["float16"]}})
    both = {
        "roles": {"a": "window"},
        "constants": {"b": 2},
        "window": "keys",
        "domain": {"segments": [2], "dtypes": ["float16"]},
    }
    assert with_known(known, stated, "unified") == binding_of(both)
    whole = binding_of({"whole": True})
    assert with_known(known, whole, None) is whole
    assert with_known(None, stated, None) is stated
    assert with_known(known, None, None) is known


def test_questions_about_the_gpu_are_answered() -> None:
    tensor = torch.zeros(3)
    with gpu_answers():
        from triton.runtime import driver  # noqa: PLC0415 - as launchers do

        assert tensor.is_cuda
        assert torch.cuda.is_available()
        assert torch.cuda.get_device_capability() == CAPABILITY
        assert torch.cuda.get_device_properties(0).multi_processor_count == MULTIPROCESSORS
        assert driver.active.get_current_target().arch == 90
        assert driver.active.utils.get_device_properties(0)["multiprocessor_count"] == MULTIPROCESSORS


def test_memory_of_the_gpu_is_memory_of_the_cpu() -> None:
    with gpu_answers(), torch.cuda.device(0):
        made = [
            torch.empty(2, device="cuda"),
            torch.zeros(2, device=torch.device("cuda", 0), pin_memory=True),
            torch.ones(2, device=0),
            torch.zeros(2).cuda(),
            torch.zeros(2).to("cuda:0"),
            torch.zeros(2).pin_memory(),
            torch.zeros(2).new_zeros(2, device="cuda"),
        ]
    assert {tensor.device.type for tensor in made} == {"cpu"}


def test_nothing_stays_changed() -> None:
    before = dict(vars(torch.cuda))
    with pytest.raises(KeyError), gpu_answers():
        raise KeyError
    assert vars(torch.cuda) == before
    assert not torch.zeros(1).is_cuda
