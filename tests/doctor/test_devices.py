"""Faults of GPUs and the libraries that they are used through."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from injected_machine import Injected, checks

from accel_bridge.backends.cuda.checks import runs_on
from accel_bridge.plugins.checks import Run, Verdict

FAILS, WARNING = Verdict.FAILS, Verdict.WARNING
H100 = "NVIDIA H100 80GB HBM3, 9.0, 81559, 4"
ARCHITECTURES = "class _C:\n    _cuda_getArchFlags = staticmethod(lambda: {flags!r})\n"


#: A torch that computes.
WORKS = """
class zeros:
    __init__ = lambda self, *shape, device: None
    add_ = lambda self, other: self
    item = lambda self: 1.0


class distributed:
    is_available = is_nccl_available = staticmethod(lambda: True)


""" + ARCHITECTURES.format(flags="sm_80 sm_90 sm_100 compute_120")


@pytest.fixture
def cuda(tmp_path: Path) -> Injected:
    """Two H100s and a torch for CUDA 13."""
    injected = Injected(tmp_path / "injected", backend="cuda", devices=2)
    injected.torch("2.11.0+cu130", "13.0", WORKS)
    injected.gpus(H100, H100)
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        injected.file(f"/dev/{name}")
    injected.file(f"{sysconfig.get_path('include')}/Python.h")
    injected.package("triton", "3.5.0", {"triton/__init__.py": ""})
    injected.program("gcc", "")
    return injected


@pytest.mark.parametrize("kind", ["cuda", pytest.param("ascend", marks=pytest.mark.slow)])
def test_a_sound_machine_is_silent(kind: str, request: pytest.FixtureRequest) -> None:
    injected: Injected = request.getfixturevalue(kind)
    injected.run = Run(processes=2)
    names = [name for name, one in checks().items() if one.subject.startswith(("NVIDIA", "Ascend"))]
    assert len(names) == 19
    for name in names:
        wrong = [one for one in injected.findings(name) if one.verdict is not Verdict.OK]
        assert not wrong, name


HEADER = f"{sysconfig.get_path('include')}/Python.h"
HOME = "/usr/local/cuda"
TOOLKIT, CUDA_12 = f"{HOME}/version.json", '{"cuda": {"version": "12.4.1"}}'
VISIBLE = "CUDA_VISIBLE_DEVICES"
P100, IN_USE = "Tesla P100, 6.0, 16280, 0", "NVIDIA H100, 9.0, 81559, 60000"
APPS = "4711, python"
MISMATCH = "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18"


def state(row: str) -> Callable[[Injected], None]:
    """The second GPU's compute mode, MIG mode, memory errors and slowdown."""
    return lambda cuda: cuda.gpus(H100, f"{H100}, {row}")


#: A check, its verdict, what is changed, and what it says.
FAULTS: list[tuple[Any, ...]] = [
    ("cuda-driver", FAILS, lambda m: m.program("nvidia-smi", MISMATCH), "mismatch", "reboot"),
    ("cuda-driver", FAILS, lambda m: m.torch("2.1+cpu", None), "2.1+cpu", "torch==2.1"),
    ("cuda-driver", FAILS, {"/dev/nvidia-uvm": None}, "/dev/nvidia-uvm", "nvidia-modprobe"),
    ("cuda-capability", FAILS, lambda m: m.gpus(P100), "Tesla P100", "6.0", "sm_80 sm_90"),
    ("cuda-state", FAILS, state("Prohibited, Disabled, 0, Not Active"), "GPU 1", "Prohibited"),
    ("cuda-state", WARNING, state("Default, Enabled, 0, Not Active"), "GPU 1", "MIG"),
    ("cuda-state", WARNING, state("Default, Disabled, 7, Not Active"), "GPU 1", "7 memory errors"),
    ("cuda-state", WARNING, state("Default, Disabled, 0, Active"), "GPU 1", "slowed down"),
    ("cuda-state", WARNING, lambda m: m.gpus(IN_USE, apps=APPS), "58.6 of 80 GiB", APPS),
    ("cuda-visible", WARNING, {VISIBLE: "0,1,2,3"}, "names 4 GPUs", "only 2", f"{VISIBLE}=0,1"),
    ("cuda-permissions", FAILS, {"forbidden": ("dev/nvidia1",)}, "/dev/nvidia1"),
    ("cuda-libraries", WARNING, {TOOLKIT: CUDA_12, "CUDA_HOME": HOME}, "12.4.1", "13.0"),
    ("cuda-compiler", FAILS, {"CC": "icc"}, "looked for icc", "apt-get install gcc"),
    ("cuda-compiler", FAILS, {HEADER: None}, "Python.h", "python3-dev"),
]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(cuda: Injected, fault: tuple[Any, ...]) -> None:
    cuda.find(*fault)


def test_precision_that_a_gpu_lacks(cuda: Injected) -> None:
    cuda.gpus("NVIDIA A100, 8.0, 81920, 0")
    cuda.arguments(bf16=True, fp8="hybrid")
    cuda.finding("cuda-capability", FAILS, "FP8 does not suit", "A100")


def test_driver_that_is_too_old(cuda: Injected) -> None:
    cuda.gpus(H100, driver="535.104.05")
    cuda.finding("cuda-driver", FAILS, "535.104.05", "CUDA 13.0 needs 580", "cuda-compat")
    cuda.file("/usr/local/cuda/compat/libcuda.so.1")
    cuda.environ["LD_LIBRARY_PATH"] = "/usr/local/cuda/compat"
    cuda.finding("cuda-driver", WARNING, "535.104.05")


@pytest.mark.parametrize(
    ("built", "capability", "runs"),
    [
        ("sm_80 sm_90", (9, 0), True),
        ("sm_80", (8, 6), True),  # machine code runs on later minor versions
        ("sm_86", (8, 0), False),
        ("sm_80 sm_90", (12, 0), False),
        ("sm_80 compute_90", (12, 0), True),  # the driver compiles it
        ("sm_90a", (9, 0), True),
        ("sm_90a", (9, 1), False),  # for that one alone
        ("sm_75 sm_80", (7, 0), False),
        ("sm_100 sm_120", (12, 1), True),
    ],
)
def test_which_gpus_a_build_runs_on(built: str, capability: tuple[int, int], runs: bool) -> None:
    assert runs_on(built.split(), capability) is runs


def test_gpus_of_several_models(cuda: Injected) -> None:
    cuda.gpus(H100, "NVIDIA L40S, 8.9, 46068, 0")
    cuda.torch("2.11.1+cu130", "13.0", ARCHITECTURES.format(flags="sm_80 sm_90"))
    cuda.finding("cuda-capability", WARNING, "slowest", "CUDA_VISIBLE_DEVICES")


def test_switches_that_are_not_set_up(cuda: Injected) -> None:
    cuda.file("/dev/nvidia-nvswitchctl")
    assert not cuda.findings("cuda-state")
    smi = cuda.programs / "nvidia-smi"
    smi.write_text(smi.read_text().replace("echo Completed", "echo 'In Progress'"))
    cuda.finding("cuda-state", FAILS, "802", "fabricmanager")


@pytest.mark.parametrize(
    ("before", "after", "texts"),
    [
        (
            "add_ = lambda self, other: self",
            "add_ = lambda self, other: 1 / 0 if 0 else (_ for _ in ()).throw(RuntimeError("
            "'Error 803: system has unsupported display driver / cuda driver combination'))",
            ("first computation", "Error 803", "cuda-compat"),
        ),
        ("staticmethod(lambda: True)", "staticmethod(lambda: False)", ("no NCCL",)),
    ],
)
def test_gpu_that_does_not_compute(
    cuda: Injected, before: str, after: str, texts: tuple[str, ...]
) -> None:
    assert before in WORKS
    (cuda.site / "torch/__init__.py").write_text(WORKS.replace(before, after))
    cuda.finding("cuda-start", FAILS, *texts)


def test_nccl_for_two_cudas(cuda: Injected) -> None:
    cuda.package("nvidia-nccl-cu13", "2.28.3")
    cuda.package("nvidia-nccl-cu12", "2.21.5")
    cuda.finding("cuda-libraries", WARNING, "overwrite", "pip uninstall nvidia-nccl-cu12")


def test_nccl_of_the_loader_path(cuda: Injected) -> None:
    cuda.file("/opt/nccl/lib/libnccl.so.2")
    cuda.environ["LD_LIBRARY_PATH"] = "/opt/nccl/lib"
    assert not cuda.findings("cuda-libraries")  # a torch that was built for the system's
    cuda.package("nvidia-nccl-cu13", "2.28.3")
    cuda.finding("cuda-libraries", WARNING, "/opt/nccl/lib/libnccl.so.2")


def test_fused_attention_without_cudnn(cuda: Injected) -> None:
    """No cuDNN is on this test's loader path, so a compiled Transformer Engine would fall back."""
    cuda.package("transformer-engine", "2.9.0", {"transformer_engine/__init__.py": ""})
    assert not cuda.findings("fused-attention")
    cuda.package("transformer-engine-torch", "2.9.0", {"transformer_engine_torch.so": ""})
    cuda.environ["LD_LIBRARY_PATH"] = str(cuda.directory)
    cuda.finding("fused-attention", WARNING, "unfused", "libcudnn_graph.so.9", "LD_LIBRARY_PATH=")
    cuda.package("flash-attn", "2.8.3", {"flash_attn/__init__.py": ""})
    found = cuda.findings("fused-attention")
    assert [one.verdict for one in found] == [Verdict.OK]


def test_parts_of_transformer_engine(cuda: Injected) -> None:
    cuda.package("transformer-engine", "2.9.0", {"transformer_engine/__init__.py": ""})
    cuda.package("transformer-engine-torch", "2.9.0")
    cuda.package("transformer-engine-cu13", "2.8.0")
    cuda.finding("transformer-engine", FAILS, "transformer-engine-cu13 2.8.0", "==2.9.0")


def test_transformer_engine_for_another_cuda(cuda: Injected) -> None:
    cuda.package("transformer-engine", "2.9.0", {"transformer_engine/__init__.py": ""})
    cuda.package("transformer-engine-cu12", "2.9.0")
    cuda.finding("transformer-engine", WARNING, "cu12", "core_cu13")


def test_flash_attention_for_another_torch(cuda: Injected) -> None:
    cuda.package("flash-attn", "2.8.3+cu12torch2.8cxx11abiTRUE")
    cuda.finding("transformer-engine", FAILS, "torch 2.8", "undefined symbol")


def test_infiniband_that_cannot_be_used(cuda: Injected) -> None:
    cuda.run = Run(machines=2)
    cuda.file("/sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n")
    cuda.file("/dev/infiniband/uverbs0")
    cuda.file("/proc/modules", "nvidia_peermem 16384 0 - Live 0x0\n")
    assert not cuda.findings("infiniband")
    cuda.file("/proc/modules", "nvidia 1 0 - Live 0x0\n")
    cuda.finding("infiniband", WARNING, "nvidia-peermem")
    cuda.file("/proc/modules", "")
    cuda.file("/sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN\n")
    cuda.finding("infiniband", WARNING, "mlx5_0: 1: DOWN")
