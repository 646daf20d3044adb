"""Faults of NPUs, CANN and torch_npu."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from injected_machine import Injected

from accel_bridge.backends.ascend._site import explanations
from accel_bridge.backends.ascend.checks import comparable
from accel_bridge.plugins.checks import ParsedArguments, Run, Verdict

FAILS, WARNING = Verdict.FAILS, Verdict.WARNING


def test_torch_npu_without_cann(tmp_path: Path) -> None:
    injected = Injected(tmp_path / "injected")
    injected.torch("2.9.0+cpu")
    injected.package("torch-npu", "2.9.0", {"torch_npu/__init__.py": ""})
    injected.finding("torch-npu", FAILS, "without CANN", "libhccl.so")
    injected.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    injected.finding("torch-npu", WARNING, "without CANN")


def test_cuda_build_beside_torch_npu(tmp_path: Path) -> None:
    injected = Injected(tmp_path / "injected")
    injected.torch("2.9.0+cu130", "13.0")
    injected.package("torch-npu", "2.9.0", {"torch_npu/__init__.py": ""})
    injected.finding("torch-npu", FAILS, "Duplicated key", "pip uninstall torch-npu")


HOME = "/usr/local/Ascend/ascend-toolkit/latest"
CANN = f"{HOME}/compiler/version.info"
DRIVER = "/usr/local/Ascend/driver"
INFO = f"{DRIVER}/version.info"
FIRMWARE = "/usr/local/Ascend/firmware/version.info"
RANGE, SPLITS = "HCCL_HOST_SOCKET_PORT_RANGE", "PYTORCH_NPU_ALLOC_CONF"
BLOCKING = {"ASCEND_LAUNCH_BLOCKING": "1", "TASK_QUEUE_ENABLE": "2"}
TWICE = dict.fromkeys(("PYTORCH_ALLOC_CONF", SPLITS), "expandable_segments:True")
#: A check, its verdict, what is changed, and what it says.
FAULTS: list[tuple[Any, ...]] = [
    ("ascend-versions", WARNING, {CANN: "Version=8.3.RC1\n"}, "8.3.RC1 is older than 8.5.0"),
    ("ascend-firmware", WARNING, {FIRMWARE: "Version=6.4.12.1\n"}, "6.4.12.1", "7.0.0 to 7.8.99"),
    ("ascend-versions", WARNING, {INFO: "Version=24.1.0\n"}, "24.1.0", "25.0rc1 or newer"),
    ("ascend-versions", FAILS, {"environ": {}}, "libhccl.so", "set_env.sh"),
    ("ascend-versions", FAILS, {"ASCEND_HOME_PATH": "/opt/ascend"}, "/opt/ascend", "set_env.sh"),
    ("ascend-versions", FAILS, {"environ": {"ASCEND_HOME_PATH": HOME}}, "500001", "kernels"),
    ("ascend-devices", FAILS, {"/dev/hisi_hdc": None}, "--device /dev/hisi_hdc"),
    ("ascend-devices", FAILS, {f"{DRIVER}/lib64/driver/libascend_hal.so": None}, f"-v {DRIVER}"),
    ("ascend-devices", FAILS, {"forbidden": ("dev/davinci0",)}, "/dev/davinci0", "HwHiAiUser"),
    ("hccl", FAILS, {"HCCL_CONNECT_TIMEOUT": "10"}, "120 to 7200"),
    *(
        ("hccl", FAILS, {RANGE: text}, text, "60000-60050")
        for text in ("60000-", "auto,60000", "70000", "60010-60000", "1-2-3")
    ),
    *(
        ("ascend-environment", FAILS, {name: value}, says, f"unset {name}")
        for name, value, says in (
            ("TASK_QUEUE_ENABLE", "3", "it takes 0, 1, 2"),
            ("CPU_AFFINITY_CONF", "2,npu0:0-99999", "the cores here are 0 to"),
            ("CPU_AFFINITY_CONF", "1,cores:0-1", "'cores:0-1' is none of"),
            (SPLITS, "expandable_segment:True", "'expandable_segment' is none of"),
            (SPLITS, "max_split_size_mb:10", "it takes 21 to"),
            (SPLITS, "garbage_collection_threshold", "it has no value"),
            ("STREAMS_PER_DEVICE", "16", "it takes 8, 32"),
        )
    ),
    ("ascend-environment", WARNING, BLOCKING, "TASK_QUEUE_ENABLE=2 has no effect"),
    ("ascend-environment", FAILS, TWICE, "are both set"),
]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(ascend: Injected, fault: tuple[Any, ...]) -> None:
    ascend.find(*fault)


@pytest.mark.parametrize(
    ("script", "texts"),
    [
        ("echo '| 1     910B3    | Alarm    | 90 |'", ("NPU 1 (910B3)", "Alarm", "RT_VISIBLE_DEV")),
        ("echo 'dcmi module initialize failed. ret is -8005'; exit 1", ("-8005",)),
    ],
)
def test_npu_that_is_not_well(ascend: Injected, script: str, texts: tuple[str, ...]) -> None:
    ascend.program("npu-smi", script)
    ascend.finding("ascend-devices", FAILS, *texts)


def test_npus_without_torch_npu(ascend: Injected) -> None:
    directory = next(ascend.site.glob("torch_npu-*"))
    (directory / "METADATA").unlink()
    (directory / "RECORD").unlink()
    directory.rmdir()
    ascend.finding("torch-npu", FAILS, "davinci0", "pip install torch-npu==2.9.0")


def test_cann_that_is_half_installed(ascend: Injected) -> None:
    ascend.spoil({f"{HOME}/lib64/libge_runner.so": None})
    ascend.finding("ascend-versions", FAILS, "half installed", "libge_runner.so", "toolkit_8.5.0")
    # A toolkit in parts, each named in LD_LIBRARY_PATH.
    ascend.file("/opt/runtime/lib64/libge_runner.so")
    ascend.environ["LD_LIBRARY_PATH"] = "/usr/lib::/opt/runtime/lib64"
    assert not ascend.findings("ascend-versions")


def test_cann_driver_and_torch_npu_of_three_releases(ascend: Injected) -> None:
    """Each is named beside the one that it does not go with."""
    ascend.file(CANN, "Version=8.2.RC1\n")
    ascend.file(INFO, "Version=23.0.1\n")
    cann, driver = ascend.findings("ascend-versions")
    for finding, texts in ((cann, "torch_npu 2.9.0"), (driver, "24.1rc2 or newer")):
        assert finding.verdict == WARNING
        assert "8.2.RC1" in finding.what
        assert texts in finding.what + "".join(finding.evidence)
        assert finding.next


@pytest.mark.parametrize(
    ("variables", "taken"),
    [
        ({}, 60003),
        ({"HCCL_IF_BASE_PORT": "50000"}, 50015),
        # It comes before HCCL_IF_BASE_PORT.
        ({"HCCL_HOST_SOCKET_PORT_RANGE": "61000,61050-61100"}, 61050),
    ],
)
def test_ports_of_hccl_in_use(ascend: Injected, variables: dict[str, str], taken: int) -> None:
    ascend.environ.update(variables)
    listens = "  sl  local_address rem_address   st\n   0: 00000000:{:04X} 00000000:0000 0A\n"
    ascend.file("/proc/net/tcp", listens.format(taken - 20))
    assert not ascend.findings("hccl")
    ascend.file("/proc/net/tcp6", listens.format(taken))
    ascend.finding("hccl", FAILS, f"listens on {taken}", "ss -ltnp", "alike on each machine")
    ascend.environ["HCCL_HOST_SOCKET_PORT_RANGE"] = "auto"
    assert not ascend.findings("hccl")


def test_npus_without_network_addresses(ascend: Injected) -> None:
    ascend.run = Run(machines=2)
    ascend.finding("hccl", FAILS, "hccn_tool", "/etc/hccn.conf")
    ascend.file("/etc/hccn.conf", "address_0=192.168.1.10\nnetmask_0=255.255.255.0\n")
    assert not ascend.findings("hccl")


@pytest.mark.slow
def test_packages_of_cann_compiler(ascend: Injected) -> None:
    (ascend.site / "decorator/__init__.py").unlink()
    (ascend.site / "decorator").rmdir()
    ascend.finding("ascend-packages", WARNING, "decorator", "pip install decorator")


def test_what_ascend_sites_set_is_understood(ascend: Injected) -> None:
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


def test_a_training_that_a_fused_operator_does_not_take(ascend: Injected) -> None:
    training = {"hidden_size": 8192, "num_attention_heads": 8, "seq_length": 64}
    ascend.run = Run(parsed=ParsedArguments("words", training))
    ascend.finding("ascend-limits", WARNING, "head size is 1 to 768, not 1024", "910B", "8.5.0")
    ascend.run = Run(parsed=ParsedArguments("words", {**training, "num_attention_heads": 64}))
    assert not ascend.findings("ascend-limits")


def test_limits_of_a_chip_that_is_not_here(tmp_path: Path) -> None:
    injected = Injected(tmp_path / "injected")
    injected.run = Run(
        parsed=ParsedArguments(
            "words",
            {"hidden_size": 8192, "num_attention_heads": 32, "tensor_model_parallel_size": 16}
            | {"use_ascend_mc2": True},
        )
    )
    assert not injected.findings("ascend-limits")
    injected.environ["ACCEL_BRIDGE_ASCEND_CHIP"] = "910b"
    injected.finding("ascend-limits", WARNING, "number of ranks is 2, 4 or 8, not 16")
    injected.environ["ACCEL_BRIDGE_ASCEND_CHIP"] = "910C"
    assert not injected.findings("ascend-limits")
