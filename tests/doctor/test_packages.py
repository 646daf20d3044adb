"""Faults of installed packages, each injected in a directory of the test's own."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from injected_machine import Injected, checks

from accel_bridge.apps._imports import ImportResult
from accel_bridge.apps.doctor import packages
from accel_bridge.backends.cpu._backend import CpuBackend
from accel_bridge.patches._factory import DISTRIBUTION
from accel_bridge.patches.doctor.installation import broken
from accel_bridge.plugins.checks import Verdict
from accel_bridge.process.extras import hidden_by, hiding

FAILS, WARNING = Verdict.FAILS, Verdict.WARNING


@pytest.fixture
def injected(tmp_path: Path) -> Injected:
    made = Injected(tmp_path / "injected")
    made.torch("2.11.0+cpu")
    return made


def megatron(injected: Injected, version: str, *, site: Path | None = None) -> Path:
    """A Megatron with its training and its compiled helpers."""
    directory = (site or injected.site) / "megatron"
    for part in ("core/datasets", "training"):
        (directory / part).mkdir(parents=True)
    (directory / "core/__init__.py").write_text(f"__version__ = {version!r}\n")
    (directory / "training/__init__.py").write_text("")
    (directory / "core/datasets/helpers_cpp.abi3.so").write_text("")
    return directory


def test_no_torch(tmp_path: Path) -> None:
    Injected(tmp_path / "injected").finding("imports", FAILS, "PyTorch is not installed", "pip")


@pytest.mark.parametrize(
    ("error", "cause", "command"),
    [
        (
            "ImportError: torch_x.so: undefined symbol: _ZN3c105ErrorC2E",
            "compiled for another version of torch",
            "--no-build-isolation",
        ),
        ("ImportError: libcuda.so.1: cannot open shared object file", "driver", "--gpus all"),
        ("ImportError: libhccl.so: cannot open shared object file", "CANN", "set_env.sh"),
        ("RuntimeError: Duplicated key 'pinned'", "CUDA build", "pip uninstall torch-npu"),
        ("ImportError: /lib/libm.so.6: version `GLIBC_2.38' not found", "newer system", "wheel"),
        ("ImportError: numpy.core.multiarray failed to import", "NumPy", "numpy<2"),
        ("ImportError: libcudnn.so.9: cannot open", "missing", "LD_LIBRARY_PATH"),
        ("ModuleNotFoundError: No module named 'einops.layers'", "missing", "pip install einops"),
        ("SyntaxError: invalid syntax", "damaged", "--force-reinstall"),
        ("ValueError: something else", "fails", "--force-reinstall"),
        (
            "ImportError: libtorch.so: undefined symbol: nccl",
            "",
            "unset LD_LIBRARY_PATH LD_PRELOAD",
        ),
    ],
)
def test_what_the_error_of_an_import_means(error: str, cause: str, command: str) -> None:
    name = "torch" if "libtorch" in error else "a_module"
    found = packages.explained(ImportResult(name, ok=False, detail=error), name)
    assert found.verdict is FAILS
    assert cause in found.what
    assert command in found.next
    assert found.evidence == (error,)


def test_torch_that_cannot_be_imported(injected: Injected) -> None:
    (injected.site / "torch/__init__.py").write_text("raise ImportError('libcublas.so.13: no')\n")
    injected.finding("imports", FAILS, "`import torch` fails", "libcublas.so.13")


def test_library_that_cannot_be_imported(injected: Injected) -> None:
    injected.package("triton", "3.5.0", {"triton/__init__.py": "import nothing_of_that_name\n"})
    injected.finding("imports", FAILS, "`import triton`", "pip install nothing_of_that_name")


def test_torch_that_hangs(injected: Injected, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hang, unless the machine has too much else to do."""
    slow = ImportResult("torch", ok=False, detail="it stands at line 3", slow=True)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.1, 0.1, 0.1))
    found = packages.explained(slow, "torch")
    assert (found.verdict, found.what) == (FAILS, "`import torch` hangs")
    monkeypatch.setattr(os, "getloadavg", lambda: (1e4, 1e4, 1e4))
    found = packages.explained(slow, "torch")
    assert (found.verdict, found.what) == (WARNING, "`import torch` is slow")
    assert "it stands at line 3" in found.evidence


FAKE_TORCH = """
__version__ = "2.11.0"


class distributed:
    is_available = is_gloo_available = staticmethod(lambda: True)


class Tensor:
    def numpy(self):
        return 0

    def __matmul__(self, other):
        return self

    def sum(self):
        return 1.0


zeros = ones = lambda *shape: Tensor()
"""


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (("True", "False"), "no torch.distributed with gloo"),
        (("return 0", "raise RuntimeError('Numpy is not there')"), "Numpy is not there"),
        (("return self", "import os; os.kill(os.getpid(), 4)"), "signal 4"),
    ],
)
def test_torch_that_does_not_compute(
    injected: Injected, change: tuple[str, str], text: str
) -> None:
    (injected.site / "torch/__init__.py").write_text(FAKE_TORCH.replace(*change, 1))
    injected.finding("imports", FAILS, text)


def test_library_without_its_compiled_part(injected: Injected) -> None:
    injected.backend = "cuda"
    injected.package("causal-conv1d", "1.6.1", {"causal_conv1d/__init__.py": ""})
    injected.finding("libraries", WARNING, "compiled part", "--force-reinstall")


def test_apex_that_is_not_nvidias(injected: Injected) -> None:
    injected.package("apex", "0.9.10.dev0", {"apex/__init__.py": "", "apex/views.py": ""})
    injected.finding("libraries", WARNING, "another project", "pip uninstall apex")


@pytest.mark.parametrize(
    ("version", "verdict"),
    [("", FAILS), ("0.11.0", FAILS), ("0.12.1", None), ("0.20.0rc0", None), ("0.25.0", WARNING)],
)
def test_version_of_megatron(injected: Injected, version: str, verdict: Verdict | None) -> None:
    if version:
        megatron(injected, version)
    if verdict is None:
        assert not injected.findings("megatron")
    else:
        injected.finding("megatron", verdict, version)


def test_megatron_without_training(injected: Injected) -> None:
    directory = megatron(injected, "0.16.1")
    (directory / "training/__init__.py").unlink()
    (directory / "training").rmdir()
    assert [one.verdict for one in injected.findings("megatron")] == [Verdict.OK]
    injected.arguments()
    injected.finding("megatron", FAILS, "megatron.training", "checkout")


@pytest.mark.parametrize(
    ("line", "next"),
    [
        ("ModuleNotFoundError: No module named 'omegaconf'", "pip install omegaconf"),
        ("ModuleNotFoundError: No module named 'yaml.nodes'", "pip install pyyaml"),
        ("ImportError: cannot import name 'x' from 'torch'", "--force-reinstall"),
    ],
)
def test_megatron_that_cannot_be_imported(line: str, next: str) -> None:
    [found] = broken(line)
    assert (found.verdict, found.evidence) == (FAILS, (line,))
    assert next in found.next


def test_import_of_megatron_in_a_process_of_its_own(injected: Injected) -> None:
    directory = megatron(injected, "0.19.2")
    injected.environ["PYTHONSAFEPATH"] = "1"  # not the checkout in which the tests run
    bridge = {"accel_bridge/__init__.py": "def activate(): pass\n"}
    injected.package("accel-bridge", "0", bridge)
    assert [one.verdict for one in injected.findings("megatron-import")] == [Verdict.OK]
    (directory / "training/__init__.py").write_text("import nothing_of_that_name\n")
    injected.finding("megatron-import", FAILS, "pip install nothing_of_that_name")


def test_two_megatrons(injected: Injected) -> None:
    other = injected.directory / "checkout"
    megatron(injected, "0.19.2")
    megatron(injected, "0.16.1", site=other)
    machine = injected.machine()
    both = replace(machine, path=(str(other), str(injected.site)))
    [found] = checks()["megatrons"].run(both)
    assert (found.verdict, len(found.evidence)) == (WARNING, 2)
    assert "0.16.1 is used" in found.what
    (other / "megatron/training/__init__.py").unlink()
    (other / "megatron/training").rmdir()
    [found] = checks()["megatrons"].run(both)
    assert found.verdict is FAILS
    assert "megatron.core 0.16.1 and megatron.training of 0.19.2" in found.what


def test_helpers_of_another_python(injected: Injected) -> None:
    directory = megatron(injected, "0.19.2") / "core/datasets"
    assert not injected.findings("dataset-helpers")
    (directory / "helpers_cpp.abi3.so").rename(
        directory / "helpers_cpp.cpython-39-x86_64-linux-gnu.so"
    )
    injected.finding("dataset-helpers", FAILS, "cpython-39", "--force-reinstall")
    (directory / "Makefile").write_text("")
    injected.environ["PATH"] = str(injected.programs)
    injected.finding("dataset-helpers", FAILS, "make, g++, Python.h, pybind11's headers", "apt-get")


def test_libraries_that_megatron_was_not_made_for(injected: Injected) -> None:
    wanted = 'causal-conv1d~=1.5; extra == "ssm"'
    injected.package(DISTRIBUTION, "0.19.2", requires=[wanted])
    injected.package("causal-conv1d", "1.4.0")
    injected.finding("megatron-libraries", WARNING, "causal-conv1d 1.4.0", "~=1.5")


@pytest.mark.parametrize("part", ["device", "kernels"])
def test_a_part_of_the_backend_that_does_not_load(
    injected: Injected, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(backend: CpuBackend) -> None:
        raise ImportError("cannot import name 'wrong'")

    assert [one.verdict for one in injected.findings("backend")] == [Verdict.OK]
    monkeypatch.setattr(CpuBackend, part, missing)
    injected.finding("backend", FAILS, f"its {part} cannot be had", "name 'wrong'", "uninstall")
    # `import megatron.training` fails of it, which is not Megatron's fault.
    assert not list(broken("accel_bridge.errors.PluginError: The backend 'cpu' is broken"))


def test_mindspeed_for_another_megatron(injected: Injected) -> None:
    megatron(injected, "0.16.1")
    injected.package("mindspeed", "0.12.1")
    assert not injected.findings("mindspeed")  # it does nothing where there is no NPU
    injected.backend = "ascend"
    injected.finding("mindspeed", WARNING, "MindSpeed 0.12.1 is not for Megatron 0.16.1")


def test_flash_attention_that_is_passed_over(injected: Injected) -> None:
    place = "transformer_engine/pytorch/attention/dot_product_attention/utils.py"
    source = 'class F:\n    version_required = PkgVersion("2.1.1")\n'
    source += '    max_version = PkgVersion("2.8.3")\n'
    injected.package(
        "transformer-engine", "2.13.0", {"transformer_engine/__init__.py": "", place: source}
    )
    injected.package("flash-attn", "2.8.4")
    injected.finding("flash-attention", WARNING, "2.8.4", "flash-attn>=2.1.1,<=2.8.3")


@pytest.mark.parametrize("name", ["torch", "numpy", "random", "megatron"])
def test_a_file_beside_the_script_that_hides_a_module(
    injected: Injected, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{name}.py").write_text("x = 1\n")
    monkeypatch.chdir(tmp_path)
    injected.finding("imports", FAILS, f"finds {tmp_path / name}.py", f"mv {tmp_path / name}.py")


def test_a_script_of_another_name_hides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("train.py", "my_torch.py", "torch.txt"):
        (tmp_path / name).touch()
    assert hiding([tmp_path]) == set()
    assert hidden_by(Path(os.__file__)) is None
    assert hidden_by(Path(pytest.__file__).parents[1] / "torch" / "random.py") is None


def test_a_cache_directory_is_named_and_nothing_reinstalled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/proc/none/there")
    line = "FileNotFoundError: [Errno 2] No such file or directory: '/proc/none'"
    for found in (
        *broken(line),
        packages.explained(ImportResult("torch", ok=False, detail=line), "torch"),
    ):
        assert "export TORCHINDUCTOR_CACHE_DIR=" in found.next
        assert "install" not in found.next
