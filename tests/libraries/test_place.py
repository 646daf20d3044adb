"""Where imports of a compiled library go, and that everything is as before afterwards."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import inspect
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name as load

import pytest
from plugin_site import Python, Site

from accel_bridge.backends._cuda_only import CUDA_ONLY
from accel_bridge.libraries import LIBRARIES, Library, Origin, Resolution, ShimFinder, decide
from accel_bridge.libraries._finder import AbsentNameError
from accel_bridge.process.environment import LibraryChoice, Settings

MAMBA = LIBRARIES["mamba_ssm"]
TOY = Library("toylib", "1.2.3", "toy-lib", extensions=("toylib_c", "toylib_d"))
PACKAGE = {
    "toylib/__init__.py": """
__version__ = '1.2.3'
MODULES = {
    "toylib.ops.norm": ("_code", "Norm norm"),
    "toylib.ops.second": ("_code", "norm second"),
    "toylib.ops": ("_code", "second norm"),
    "toylib.nn.blocks": ("_code", "Norm"),
    "toylib": ("_code", "Norm _hidden"),
    "toylib_d": ("_code", "_hidden"),
}
""",
    "toylib/_code.py": """
class Norm:
    pass
def norm():
    return Norm()
def second():
    pass
def _hidden():
    return 7
""",
    "toylib/layers.py": "from .shapes import Shape\nclass Linear:\n    shape = Shape\n",
    "toylib/shapes.py": "class Shape:\n    pass\n",
    "toylib/circle.py": "from .circle_other import late\nearly = 1\n",
    "toylib/circle_other.py": "from .circle import early\nlate = 2\n",
    "toylib_c.py": "def product():\n    return 6\n",
}


@pytest.fixture
def shim(tmp_path: Path) -> Iterator[ShimFinder]:
    """The finder of a shim for a library that is not installed, in place."""
    for name, text in PACKAGE.items():
        path = tmp_path / "shims" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    finder = ShimFinder([TOY], tmp_path / "shims")
    finder.install()
    yield finder
    finder.remove()


def test_everything_is_as_before_when_the_finder_is_gone(shim: ShimFinder) -> None:
    shim.remove()
    before = list(sys.meta_path), set(sys.modules)
    shim.install()
    importlib.import_module("toylib.layers")
    importlib.import_module("toylib_c")
    assert set(sys.modules) - before[1] == {"toylib", "toylib.layers", "toylib.shapes", "toylib_c"}
    shim.remove()
    assert (sys.meta_path, set(sys.modules)) == before
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("toylib")


def test_the_next_activation_goes_on_with_the_same_classes(shim: ShimFinder) -> None:
    first = load("toylib.layers:Linear")
    shim.remove()
    again = ShimFinder([TOY])
    again.install()
    try:
        assert load("toylib.layers:Linear") is first
    finally:
        again.remove()


def test_a_table_makes_the_librarys_modules(shim: ShimFinder) -> None:
    cls = load("toylib:Norm")
    assert cls.__module__ == "toylib.ops.norm"
    assert load("toylib.nn.blocks:Norm") is load("toylib.ops.norm:Norm") is cls
    assert "class Norm" in inspect.getsource(cls)  # type: ignore[arg-type]
    assert b"toylib.ops.norm" in pickle.dumps(cls)
    assert pickle.loads(pickle.dumps(cls)) is cls
    for name in ("toylib.ops", "toylib.nn", "toylib.nn.blocks", "toylib_d"):
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert Path(str(spec.origin)).is_file()
    assert importlib.util.find_spec("toylib.nn.layers") is None
    # A function has the name of a module beside it, as fla.modules.conv.causal_conv1d.
    importlib.import_module("toylib.ops.norm")
    assert callable(load("toylib.ops:norm"))
    assert load("toylib_d:_hidden")() == 7  # type: ignore[operator]
    names: dict[str, object] = {}
    exec("from toylib.ops.norm import *", names)
    assert set(names) - {"__builtins__"} == {"Norm", "norm"}
    assert dir(importlib.import_module("toylib.nn"))[-1] == "blocks"
    assert not hasattr(importlib.import_module("toylib.ops"), "Norm")


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("import toylib.nn.blocs", "has no toylib.nn.blocs; the nearest name there is 'blocks'"),
        ("from toylib.ops import Norm", "toylib.ops.Norm; the nearest name there is 'norm'"),
        ("from toylib.ops.norm import Nor", "toylib.ops.norm.Nor; the nearest name there is 'No"),
        ("import toylib.lairs", "has no toylib.lairs; the nearest name there is 'layers'"),
        ("from toylib import lairs", "has no toylib.lairs; the nearest name there is 'layers'"),
        ("from toylib.layers import Linea", "toylib.layers.Linea; the nearest name there is 'Lin"),
        ("from toylib_c import prod", "has no toylib_c.prod"),
        ("import toylib.a.b", "has no toylib.a\n"),
    ],
)
def test_an_absent_name_is_explained(shim: ShimFinder, statement: str, said: str) -> None:
    for name in ("layers", "ops.norm", "nn.blocks"):
        importlib.import_module(f"toylib.{name}")
    with pytest.raises(ImportError) as caught:
        exec(statement, {})
    assert isinstance(caught.value, AbsentNameError)
    what, evidence, next_step = str(caught.value).split("\n")
    assert what.startswith("accel_bridge's shim for toylib 1.2.3 has no toylib")
    assert said in f"{what}\n"
    assert "accel-bridge libraries" in evidence
    assert "install the real toy-lib" in next_step


def test_a_circular_import_keeps_its_own_message(shim: ShimFinder) -> None:
    with pytest.raises(ImportError, match="partially initialized") as caught:
        importlib.import_module("toylib.circle")
    assert not isinstance(caught.value, AbsentNameError)


def test_metadata_agree_with_the_import(
    shim: ShimFinder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for spelling in ("toy-lib", "Toy_Lib", "toy.lib"):
        assert importlib.metadata.version(spelling) == "1.2.3"
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("toylib")
    monkeypatch.setattr(sys, "path", [])  # reading all that is installed takes seconds
    owners = importlib.metadata.packages_distributions()
    assert owners["toylib"] == owners["toylib_c"] == ["toy-lib"]
    # What pip asks: is it installed in this directory?
    named = importlib.metadata.distributions(name="toy-lib", path=[str(tmp_path)])
    assert list(named) == []
    shim.remove()
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("toy-lib")


def install(site: Site, files: dict[str, str]) -> None:
    """Write files of a real library, and its metadata."""
    for name, text in files.items():
        (site.directory / name).parent.mkdir(parents=True, exist_ok=True)
        (site.directory / name).write_text(text)
    site.install("compiled-lib", {})


REAL = {"compiledlib/__init__.py": "", "compiledlib/wheel_lib/compiled_c.cpython-312.so": ""}
COMPILED = Library(
    "compiledlib", "2.0", "compiled-lib", compiled=("compiledlib/wheel_lib/compiled_c*.so",)
)


def resolution(value: str, hidden: tuple[str, ...] = (), adaptor: str | None = None) -> Resolution:
    """The decision for the library above."""
    choice = Settings.from_environ({"ACCEL_BRIDGE_LIBRARIES": value}).libraries
    (found,) = decide(choice, hidden, "CPU", adaptor, [COMPILED])
    return found


HIDES = ("compiledlib",)


@pytest.mark.parametrize(
    ("value", "installed", "hidden", "adaptor", "origin", "why"),
    [
        ("all", False, (), None, Origin.SHIM, "it is not installed"),
        ("none", False, (), None, Origin.ABSENT, "it is not installed; excluded by"),
        ("-compiledlib", False, (), None, Origin.ABSENT, "LIBRARIES=-compiledlib"),
        ("other", False, (), None, Origin.ABSENT, "not among the names"),
        ("all", False, (), "MindSpeed", Origin.ABSENT, "MindSpeed has taken over"),
        ("all", True, (), None, Origin.REAL, "it is installed"),
        ("none", True, (), None, Origin.REAL, "it is installed"),
        ("compiledlib", True, (), "MindSpeed", Origin.REAL, "it is installed"),
        ("compiledlib", True, (), None, Origin.SHIM, "asks for it"),
        ("all", True, HIDES, None, Origin.SHIM, "the real one cannot work on CPU"),
        ("none", True, HIDES, None, Origin.ABSENT, "cannot work on CPU; excluded by"),
        ("all", True, HIDES, "MindSpeed", Origin.ABSENT, "cannot work on CPU; MindSpeed has"),
    ],
)
def test_the_decision(
    site: Site,
    value: str,
    installed: bool,
    hidden: tuple[str, ...],
    adaptor: str | None,
    origin: Origin,
    why: str,
) -> None:
    if installed:
        install(site, REAL)
    found = resolution(value, hidden, adaptor)
    assert found.origin is origin
    assert why in found.why
    assert found.warning is None
    assert found.version == {Origin.REAL: "1.0", Origin.SHIM: "2.0"}.get(origin)
    assert "compiledlib" not in sys.modules


def test_a_library_without_its_compiled_part_is_replaced_with_a_warning(site: Site) -> None:
    install(site, {"compiledlib/__init__.py": "raise ImportError"})
    found = resolution("all")
    assert found.origin is Origin.SHIM
    assert "its compiled part is missing" in found.why
    assert "pip install --force-reinstall compiled-lib" in str(found.warning)
    assert resolution("none").origin is Origin.REAL


def test_no_shim_beside_a_real_library_that_looks_inside_it(site: Site) -> None:
    """A real Transformer Engine that finds flash_attn imports its compiled part."""
    install(site, {"reallib/__init__.py": ""})
    real = Library("reallib", "1", "real-lib")
    beside = Library("toylib", "1", "toy-lib", not_beside="reallib")

    def origins(choice: LibraryChoice) -> list[Origin]:
        return [one.origin for one in decide(choice, (), "a CPU", None, [real, beside])]

    assert origins(LibraryChoice()) == [Origin.REAL, Origin.ABSENT]
    assert origins(LibraryChoice(frozenset({"toylib"}))) == [Origin.REAL, Origin.SHIM]


def test_the_real_mamba_ssm_works_without_its_compiled_part(forked: Python, site: Site) -> None:
    """Mamba-2 is in Triton; ``import mamba_ssm`` needs what only Mamba-1 computes with."""
    site.install("mamba-ssm", {})
    for name, text in {
        "": "import selective_scan_cuda as below\nwhere = 'real'",
        ".ops": "",
        ".ops.triton": "",
        ".ops.triton.ssd_combined": "from causal_conv1d.cpp_functions import "
        "causal_conv1d_bwd_function, causal_conv1d_fwd_function, causal_conv1d_update_function",
    }.items():
        file = site.directory.joinpath("mamba_ssm", *name.split(".")[1:], "__init__.py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    program = """
import sys
from importlib.metadata import version
from accel_bridge.backends.cpu._backend import CpuBackend
CpuBackend.hidden_modules = tuple(sys.argv[1:])
import accel_bridge.auto
import mamba_ssm, selective_scan_cuda
import mamba_ssm.ops.triton.ssd_combined
real = getattr(mamba_ssm, "where", None) == "real"
print(real, version("mamba-ssm"), "accel_bridge" in selective_scan_cuda.__file__)
"""
    environ = {"ACCEL_BRIDGE_BACKEND": "cpu", "PYTHONPATH": str(site.directory)}
    every = " ".join(CUDA_ONLY)
    for hidden, said in (("", "True 1.0 True"), (every, f"False {MAMBA.version} True")):
        done = forked("-c", program, *hidden.split(), **environ)
        assert done.stdout.splitlines() == [said], done.stderr[-2000:]


@pytest.mark.parametrize("hidden", [(), ("partlib",)])
@pytest.mark.parametrize("installed", [True, False])
def test_a_part_of_another_distribution_stays_real(
    site: Site, tmp_path: Path, hidden: tuple[str, ...], installed: bool
) -> None:
    """FlashAttention-4 lies in flash_attn's directory, and needs nothing else of it."""
    (tmp_path / "shims" / "partlib").mkdir(parents=True)
    (tmp_path / "shims" / "partlib" / "__init__.py").write_text("where = 'shim'")
    install(site, {"partlib/cute/__init__.py": "", "partlib/cute/deep.py": "where = 'real'"})
    part = "part-lib-4" if not installed else "pluggy"
    library = Library("partlib", "1", "part-lib", parts=(("partlib.cute", part),))
    finder = ShimFinder([library], tmp_path / "shims", hidden=hidden)
    finder.install()
    try:
        assert importlib.import_module("partlib").where == "shim"
        if installed and not hidden:
            assert importlib.import_module("partlib.cute.deep").where == "real"
            finder.remove()
            assert "partlib" not in sys.modules
            assert "partlib.cute" in sys.modules
        else:
            with pytest.raises(AbsentNameError, match=r"no partlib\.cute"):
                importlib.import_module("partlib.cute.deep")
    finally:
        finder.remove()
        for name in [one for one in sys.modules if one.startswith("partlib")]:
            del sys.modules[name]


def test_what_was_imported_before_stays(site: Site) -> None:
    install(site, REAL)
    importlib.import_module("compiledlib")
    assert resolution("all").origin is Origin.REAL
    assert resolution("all").warning is None
    asked_for = resolution("compiledlib")
    assert asked_for.origin is Origin.REAL
    assert "asks for the shim, but it was imported before" in str(asked_for.warning)


def test_what_sys_modules_forbids_stays_forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "compiledlib", None)
    assert resolution("compiledlib").origin is Origin.ABSENT


CHILDREN = """
import multiprocessing
import sys
import accel_bridge.auto
import flash_attn

def version(queue):
    import flash_attn.layers
    queue.put((flash_attn.__version__, "megatron" in sys.modules))

if __name__ == "__main__":
    for method in ("fork", "spawn"):
        context = multiprocessing.get_context(method)
        queue = context.SimpleQueue()
        child = context.Process(target=version, args=(queue,))
        child.start()
        print(method, *queue.get())
        child.join()
"""


def test_child_processes_have_them_too(forked: Python, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(CHILDREN)
    done = forked(str(script), ACCEL_BRIDGE_BACKEND="cpu")
    version = LIBRARIES["flash_attn"].version
    assert done.stdout.splitlines() == [f"fork {version} False", f"spawn {version} False"], (
        done.stderr[-2000:]
    )
