"""Faults of GPUs, NPUs and the libraries that they are used through."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest
from planted_machine import Planted, checks

from accel_bridge._findings import Verdict
from accel_bridge._machine import Run
from accel_bridge.backends.ascend._site import explanations
from accel_bridge.backends.ascend.checks import CANN_LIBRARIES, comparable
from accel_bridge.backends.cuda.checks import runs_on

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
def cuda(tmp_path: Path) -> Planted:
    """Two H100s and a torch for CUDA 13."""
    planted = Planted(tmp_path / "planted", backend="cuda", devices=2)
    planted.torch("2.11.0+cu130", "13.0", WORKS)
    planted.gpus(H100, H100)
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        planted.file(f"/dev/{name}")
    planted.file(f"{sysconfig.get_path('include')}/Python.h")
    planted.package("triton", "3.5.0", {"triton/__init__.py": ""})
    planted.program("gcc", "")
    return planted


@pytest.fixture
def ascend(tmp_path: Path) -> Planted:
    """Two NPUs with CANN 8.5, a driver for it, and torch_npu."""
    planted = Planted(tmp_path / "planted", backend="ascend", devices=2)
    planted.torch("2.9.0+cpu")
    planted.package("torch-npu", "2.9.0", {"torch_npu/__init__.py": ""})
    home = "/usr/local/Ascend/ascend-toolkit/latest"
    planted.file(f"{home}/compiler/version.info", "Version=8.5.0\n")
    planted.file(f"{home}/opp/version.info", "Version=8.5.0\n")
    for library in CANN_LIBRARIES:
        planted.file(f"{home}/lib64/{library}")
    planted.file(
        "/usr/local/Ascend/driver/version.info",
        "Version=25.3.rc1\ncompatible_version_fw=[7.0.0,7.8.99]\n",
    )
    planted.file("/usr/local/Ascend/firmware/version.info", "Version=7.7.0.6.236\n")
    planted.file("/usr/local/Ascend/driver/lib64/driver/libascend_hal.so")
    for name in ("davinci0", "davinci1", "davinci_manager", "devmm_svm", "hisi_hdc"):
        planted.file(f"/dev/{name}")
    planted.environ = {"ASCEND_HOME_PATH": home, "ASCEND_OPP_PATH": f"{home}/opp"}
    table = "\n".join(f"| {n}     910B3               | OK            | 90 |" for n in (0, 1))
    planted.program("npu-smi", f"cat <<'END'\n{table}\nEND")
    modules = ("attr", "cloudpickle", "decorator", "ml_dtypes", "numpy", "psutil", "scipy")
    for module in (*modules, "sympy", "tornado", "absl"):
        planted.package(f"fake-{module}", "1", {f"{module}/__init__.py": ""})
    return planted


@pytest.mark.parametrize("kind", ["cuda", "ascend"])
def test_a_sound_machine_is_silent(kind: str, request: pytest.FixtureRequest) -> None:
    planted: Planted = request.getfixturevalue(kind)
    planted.run = Run(processes=2)
    names = [name for name, one in checks().items() if one.subject.startswith(("NVIDIA", "Ascend"))]
    assert len(names) == 18
    for name in names:
        wrong = [one for one in planted.findings(name) if one.verdict is not Verdict.OK]
        assert not wrong, name


def test_driver_that_is_too_old(cuda: Planted) -> None:
    cuda.gpus(H100, driver="535.104.05")
    cuda.finding("cuda-driver", FAILS, "535.104.05", "CUDA 13.0 needs 580", "cuda-compat")
    cuda.file("/usr/local/cuda/compat/libcuda.so.1")
    cuda.environ["LD_LIBRARY_PATH"] = "/usr/local/cuda/compat"
    cuda.finding("cuda-driver", WARNING, "535.104.05")


def test_driver_that_was_updated(cuda: Planted) -> None:
    cuda.program(
        "nvidia-smi", "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18"
    )
    cuda.finding("cuda-driver", FAILS, "version mismatch", "reboot")


def test_torch_without_cuda(cuda: Planted) -> None:
    cuda.torch("2.11.1+cpu", None)
    cuda.finding("cuda-driver", FAILS, "2.11.1+cpu", "torch==2.11.1")


def test_container_without_unified_memory(cuda: Planted) -> None:
    (cuda.root / "dev/nvidia-uvm").unlink()
    cuda.finding("cuda-driver", FAILS, "/dev/nvidia-uvm", "nvidia-modprobe")


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


def test_gpu_that_torch_has_no_kernels_for(cuda: Planted) -> None:
    cuda.gpus("Tesla P100, 6.0, 16280, 0")
    cuda.finding("cuda-capability", FAILS, "Tesla P100", "6.0", "sm_80 sm_90")


def test_precision_that_a_gpu_lacks(cuda: Planted) -> None:
    cuda.gpus("NVIDIA A100, 8.0, 81920, 0")
    cuda.arguments(bf16=True, fp8="hybrid")
    cuda.finding("cuda-capability", FAILS, "FP8 does not suit", "A100")


def test_gpus_of_several_models(cuda: Planted) -> None:
    cuda.gpus(H100, "NVIDIA L40S, 8.9, 46068, 0")
    cuda.torch("2.11.1+cu130", "13.0", ARCHITECTURES.format(flags="sm_80 sm_90"))
    cuda.finding("cuda-capability", WARNING, "slowest", "CUDA_VISIBLE_DEVICES")


@pytest.mark.parametrize(
    ("row", "verdict", "text"),
    [
        ("Prohibited, Disabled, 0, Not Active", FAILS, "compute mode: Prohibited"),
        ("Default, Enabled, 0, Not Active", WARNING, "MIG"),
        ("Default, Disabled, 7, Not Active", WARNING, "7 memory errors"),
        ("Default, Disabled, 0, Active", WARNING, "slowed down"),
    ],
)
def test_state_of_a_gpu(cuda: Planted, row: str, verdict: Verdict, text: str) -> None:
    cuda.gpus(H100, f"{H100}, {row}")
    cuda.finding("cuda-state", verdict, "GPU 1", text)


def test_gpu_that_is_in_use(cuda: Planted) -> None:
    cuda.gpus("NVIDIA H100, 9.0, 81559, 60000", apps="4711, python, 59000 MiB")
    cuda.finding("cuda-state", WARNING, "58.6 of 80 GiB", "4711, python")


def test_switches_that_are_not_set_up(cuda: Planted) -> None:
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
    cuda: Planted, before: str, after: str, texts: tuple[str, ...]
) -> None:
    assert before in WORKS
    (cuda.site / "torch/__init__.py").write_text(WORKS.replace(before, after))
    cuda.finding("cuda-start", FAILS, *texts)


def test_gpus_that_are_not_there(cuda: Planted) -> None:
    cuda.environ["CUDA_VISIBLE_DEVICES"] = "0,1,2,3"
    cuda.finding("cuda-visible", WARNING, "names 4 GPUs", "only 2", "CUDA_VISIBLE_DEVICES=0,1")


def test_device_file_of_somebody_else(cuda: Planted) -> None:
    cuda.forbidden = ("dev/nvidia1",)
    cuda.finding("cuda-permissions", FAILS, "/dev/nvidia1")


def test_nccl_for_two_cudas(cuda: Planted) -> None:
    cuda.package("nvidia-nccl-cu13", "2.28.3")
    cuda.package("nvidia-nccl-cu12", "2.21.5")
    cuda.finding("cuda-libraries", WARNING, "overwrite", "pip uninstall nvidia-nccl-cu12")


def test_nccl_of_the_loader_path(cuda: Planted) -> None:
    cuda.file("/opt/nccl/lib/libnccl.so.2")
    cuda.environ["LD_LIBRARY_PATH"] = "/opt/nccl/lib"
    assert not cuda.findings("cuda-libraries")  # a torch that was built for the system's
    cuda.package("nvidia-nccl-cu13", "2.28.3")
    cuda.finding("cuda-libraries", WARNING, "/opt/nccl/lib/libnccl.so.2")


def test_toolkit_of_another_cuda(cuda: Planted) -> None:
    cuda.file("/usr/local/cuda/version.json", '{"cuda": {"version": "12.4.1"}}')
    cuda.environ["CUDA_HOME"] = "/usr/local/cuda"
    cuda.finding("cuda-libraries", WARNING, "12.4.1", "13.0")


def test_no_compiler_for_triton(cuda: Planted) -> None:
    cuda.environ["CC"] = "icc"
    cuda.finding("cuda-compiler", FAILS, "looked for icc", "apt-get install gcc")


def test_no_headers_of_python(cuda: Planted) -> None:
    (cuda.root / sysconfig.get_path("include").lstrip("/") / "Python.h").unlink()
    cuda.finding("cuda-compiler", FAILS, "Python.h", "python3-dev")


def test_fused_attention_without_cudnn(cuda: Planted) -> None:
    """No cuDNN is on this test's loader path, so Transformer Engine would fall back."""
    cuda.package("transformer-engine", "2.9.0", {"transformer_engine/__init__.py": ""})
    cuda.environ["LD_LIBRARY_PATH"] = str(cuda.folder)
    cuda.finding("fused-attention", WARNING, "unfused", "libcudnn_graph.so.9", "LD_LIBRARY_PATH=")
    cuda.package("flash-attn", "2.8.3", {"flash_attn/__init__.py": ""})
    found = cuda.findings("fused-attention")
    assert [one.verdict for one in found] == [Verdict.OK]


def test_parts_of_transformer_engine(cuda: Planted) -> None:
    cuda.package("transformer-engine", "2.9.0", {"transformer_engine/__init__.py": ""})
    cuda.package("transformer-engine-torch", "2.9.0")
    cuda.package("transformer-engine-cu13", "2.8.0")
    cuda.finding("transformer-engine", FAILS, "transformer-engine-cu13 2.8.0", "==2.9.0")


def test_transformer_engine_for_another_cuda(cuda: Planted) -> None:
    cuda.package("transformer-engine", "2.9.0", {"transformer_engine/__init__.py": ""})
    cuda.package("transformer-engine-cu12", "2.9.0")
    cuda.finding("transformer-engine", WARNING, "cu12", "core_cu13")


def test_flash_attention_for_another_torch(cuda: Planted) -> None:
    cuda.package("flash-attn", "2.8.3+cu12torch2.8cxx11abiTRUE")
    cuda.finding("transformer-engine", FAILS, "torch 2.8", "undefined symbol")


def test_infiniband_that_cannot_be_used(cuda: Planted) -> None:
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


def test_torch_npu_without_cann(tmp_path: Path) -> None:
    planted = Planted(tmp_path / "planted")
    planted.torch("2.9.0+cpu")
    planted.package("torch-npu", "2.9.0", {"torch_npu/__init__.py": ""})
    planted.finding("torch-npu", FAILS, "without CANN", "libhccl.so")
    planted.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    planted.finding("torch-npu", WARNING, "without CANN")


def test_cuda_build_beside_torch_npu(tmp_path: Path) -> None:
    planted = Planted(tmp_path / "planted")
    planted.torch("2.9.0+cu130", "13.0")
    planted.package("torch-npu", "2.9.0", {"torch_npu/__init__.py": ""})
    planted.finding("torch-npu", FAILS, "Duplicated key", "pip uninstall torch-npu")


def test_npus_without_torch_npu(ascend: Planted) -> None:
    folder = next(ascend.site.glob("torch_npu-*"))
    (folder / "METADATA").unlink()
    (folder / "RECORD").unlink()
    folder.rmdir()
    ascend.finding("torch-npu", FAILS, "davinci0", "pip install torch-npu==2.9.0")


def test_torch_npu_for_another_torch(ascend: Planted) -> None:
    ascend.torch("2.8.1+cpu")
    ascend.finding("torch-npu", FAILS, "torch_npu 2.9.0 is not for torch 2.8.1")


def test_cann_that_torch_npu_was_not_built_with(ascend: Planted) -> None:
    home = ascend.environ["ASCEND_HOME_PATH"]
    ascend.file(f"{home}/compiler/version.info", "Version=8.3.RC1\n")
    ascend.finding("ascend-versions", WARNING, "CANN 8.3.RC1 is older than 8.5.0")


def test_driver_older_than_cann_supports(ascend: Planted) -> None:
    ascend.file("/usr/local/Ascend/driver/version.info", "Version=24.1.0\n")
    ascend.finding("ascend-versions", WARNING, "24.1.0", "25.0rc1 or newer")


def test_cann_whose_variables_are_not_set(ascend: Planted) -> None:
    ascend.environ.clear()
    ascend.finding("ascend-versions", FAILS, "libhccl.so", "set_env.sh")


def test_cann_that_was_moved(ascend: Planted) -> None:
    ascend.environ["ASCEND_HOME_PATH"] = "/opt/ascend"
    ascend.finding("ascend-versions", FAILS, "/opt/ascend", "set_env.sh")


def test_cann_without_operators(ascend: Planted) -> None:
    del ascend.environ["ASCEND_OPP_PATH"]
    ascend.finding("ascend-versions", FAILS, "500001", "kernels")


def test_cann_that_is_half_installed(ascend: Planted) -> None:
    home = ascend.environ["ASCEND_HOME_PATH"]
    (ascend.root / home.lstrip("/") / "lib64/libge_runner.so").unlink()
    ascend.finding("ascend-versions", FAILS, "half installed", "libge_runner.so", "toolkit_8.5.0")
    # A toolkit in parts, each named in LD_LIBRARY_PATH.
    ascend.file("/opt/runtime/lib64/libge_runner.so")
    ascend.environ["LD_LIBRARY_PATH"] = "/usr/lib::/opt/runtime/lib64"
    assert not ascend.findings("ascend-versions")


def test_cann_driver_and_torch_npu_of_three_releases(ascend: Planted) -> None:
    """Each is named beside the one that it does not go with."""
    home = ascend.environ["ASCEND_HOME_PATH"]
    ascend.file(f"{home}/compiler/version.info", "Version=8.2.RC1\n")
    ascend.file("/usr/local/Ascend/driver/version.info", "Version=23.0.1\n")
    cann, driver = ascend.findings("ascend-versions")
    for finding, texts in ((cann, "torch_npu 2.9.0"), (driver, "24.1rc2 or newer")):
        assert finding.verdict == WARNING
        assert "8.2.RC1" in finding.what
        assert texts in finding.what + "".join(finding.evidence)
        assert finding.next


def test_firmware_of_another_release(ascend: Planted) -> None:
    ascend.file("/usr/local/Ascend/firmware/version.info", "Version=6.4.12.1.241\n")
    ascend.finding("ascend-firmware", WARNING, "6.4.12.1.241", "7.0.0 to 7.8.99")


def test_npu_that_is_not_well(ascend: Planted) -> None:
    ascend.program("npu-smi", "echo '| 1     910B3    | Alarm    | 90 |'")
    ascend.finding("ascend-devices", FAILS, "NPU 1 (910B3)", "Alarm", "ASCEND_RT_VISIBLE_DEVICES")


def test_npu_driver_that_does_not_answer(ascend: Planted) -> None:
    ascend.program("npu-smi", "echo 'dcmi module initialize failed. ret is -8005'; exit 1")
    ascend.finding("ascend-devices", FAILS, "-8005")


def test_container_without_all_device_files(ascend: Planted) -> None:
    (ascend.root / "dev/hisi_hdc").unlink()
    ascend.finding("ascend-devices", FAILS, "/dev/hisi_hdc", "--device /dev/hisi_hdc")


def test_container_without_the_driver(ascend: Planted) -> None:
    (ascend.root / "usr/local/Ascend/driver/lib64/driver/libascend_hal.so").unlink()
    ascend.finding("ascend-devices", FAILS, "libascend_hal.so", "-v /usr/local/Ascend/driver")


def test_npu_of_another_group(ascend: Planted) -> None:
    ascend.forbidden = ("dev/davinci0",)
    ascend.finding("ascend-devices", FAILS, "/dev/davinci0", "HwHiAiUser")


def test_hccl_variable_that_means_nothing(ascend: Planted) -> None:
    ascend.environ["HCCL_CONNECT_TIMEOUT"] = "10"
    ascend.finding("hccl", FAILS, "120 to 7200")


@pytest.mark.parametrize(
    ("variables", "taken"),
    [
        ({}, 60003),
        ({"HCCL_IF_BASE_PORT": "50000"}, 50015),
        # It comes before HCCL_IF_BASE_PORT.
        ({"HCCL_HOST_SOCKET_PORT_RANGE": "61000,61050-61100"}, 61050),
    ],
)
def test_ports_of_hccl_in_use(ascend: Planted, variables: dict[str, str], taken: int) -> None:
    ascend.environ.update(variables)
    listens = "  sl  local_address rem_address   st\n   0: 00000000:{:04X} 00000000:0000 0A\n"
    ascend.file("/proc/net/tcp", listens.format(taken - 20))
    assert not ascend.findings("hccl")
    ascend.file("/proc/net/tcp6", listens.format(taken))
    ascend.finding("hccl", FAILS, f"listens on {taken}", "ss -ltnp", "alike on each machine")
    ascend.environ["HCCL_HOST_SOCKET_PORT_RANGE"] = "auto"
    assert not ascend.findings("hccl")


@pytest.mark.parametrize("text", ["60000-", "auto,60000", "70000", "60010-60000", "1-2-3"])
def test_ports_that_hccl_does_not_understand(ascend: Planted, text: str) -> None:
    ascend.environ["HCCL_HOST_SOCKET_PORT_RANGE"] = text
    ascend.finding("hccl", FAILS, text, "60000-60050")


def test_npus_without_network_addresses(ascend: Planted) -> None:
    ascend.run = Run(machines=2)
    ascend.finding("hccl", FAILS, "hccn_tool", "/etc/hccn.conf")
    ascend.file("/etc/hccn.conf", "address_0=192.168.1.10\nnetmask_0=255.255.255.0\n")
    assert not ascend.findings("hccl")


@pytest.mark.slow
def test_packages_of_cann_compiler(ascend: Planted) -> None:
    (ascend.site / "decorator/__init__.py").unlink()
    (ascend.site / "decorator").rmdir()
    ascend.finding("ascend-packages", WARNING, "decorator", "pip install decorator")


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("TASK_QUEUE_ENABLE", "3", "it takes 0, 1, 2"),
        ("CPU_AFFINITY_CONF", "2,npu0:0-99999", "the cores here are 0 to"),
        ("CPU_AFFINITY_CONF", "1,cores:0-1", "'cores:0-1' is none of"),
        ("PYTORCH_NPU_ALLOC_CONF", "expandable_segment:True", "'expandable_segment' is none of"),
        ("PYTORCH_NPU_ALLOC_CONF", "max_split_size_mb:10", "it takes 21 to"),
        ("PYTORCH_NPU_ALLOC_CONF", "garbage_collection_threshold", "it has no value"),
        ("STREAMS_PER_DEVICE", "16", "it takes 8, 32"),
    ],
)
def test_variable_of_torch_npu_that_means_nothing(
    ascend: Planted, name: str, value: str, says: str
) -> None:
    ascend.environ[name] = value
    ascend.finding("ascend-environment", FAILS, says, f"unset {name}")


def test_variables_of_torch_npu_that_contradict(ascend: Planted) -> None:
    ascend.environ |= {"ASCEND_LAUNCH_BLOCKING": "1", "TASK_QUEUE_ENABLE": "2"}
    ascend.finding("ascend-environment", WARNING, "TASK_QUEUE_ENABLE=2 has no effect")
    del ascend.environ["ASCEND_LAUNCH_BLOCKING"]
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_NPU_ALLOC_CONF"):
        ascend.environ[name] = "expandable_segments:True"
    ascend.finding("ascend-environment", FAILS, "are both set")


def test_what_ascend_sites_set_is_understood(ascend: Planted) -> None:
    ascend.environ |= {
        "TASK_QUEUE_ENABLE": "2",
        "CPU_AFFINITY_CONF": "1,npu0:0-0,npu_affine:1",
        "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True,"
        "roundup_power2_divisions:[256:1,512:2,>:8],garbage_collection_threshold:0.95",
    }
    assert not ascend.findings("ascend-environment")
    said = explanations(ascend.environ)
    assert "higher peak" in said["TASK_QUEUE_ENABLE"]
    assert set(said) == {"TASK_QUEUE_ENABLE", "CPU_AFFINITY_CONF", "PYTORCH_NPU_ALLOC_CONF"}


def test_versions_as_ascend_spells_them() -> None:
    spelled = ["23.0.2", "24.1.rc2", "24.1.rc3.b999", "24.1.0", "25.0.RC1", "25.5.0"]
    found = [comparable(text) for text in spelled]
    assert found == sorted(one for one in found if one is not None)
    assert comparable("EMULATED") is None
