"""``accel-bridge pretrain``: the command line that it becomes, and what it refuses."""

from __future__ import annotations

import shlex
import sys

import pytest

from accel_bridge.bridge import activation
from accel_bridge.bridge.selection import Selection
from accel_bridge.device.backend import Backend, DeviceSpec, Probe, ProbedBackend
from accel_bridge.errors import SelectionError
from accel_bridge.pretrain import command as pretrain
from accel_bridge.pretrain.command import entry_point
from accel_bridge.process.ranks import SINGLE_PROCESS, set_single_process


class TwoDevices(Backend):
    """A machine with two devices."""

    name = "pair"
    title = "Pair"
    priority = 5

    def probe(self) -> Probe:
        return Probe(True, "two devices", ("device 0", "device 1"), devices=2)

    def device(self) -> DeviceSpec | None:
        return None


@pytest.fixture
def two_devices(monkeypatch: pytest.MonkeyPatch) -> Selection:
    backend = TwoDevices()
    probed = ProbedBackend(backend, "pair", backend.probe())
    selection = Selection(backend, "pair: two devices", "evidence", (probed,))
    monkeypatch.setattr(pretrain, "select", lambda plugins, settings: selection)
    return selection


def test_torchrun_options_and_megatron_arguments_part_by_themselves() -> None:
    words = ["--nproc-per-node", "2", "--num-layers", "4", "--bf16", "--", "--lr", "1e-4"]
    command = pretrain.training_command(words)
    entry = command.index("accel_bridge.run")
    assert command[:3] == [sys.executable, "-m", "accel_bridge.process.launch"]
    assert command[3:entry] == ["--nproc-per-node", "2", "--standalone", "-m"]
    assert command[entry + 3 :] == ["--num-layers", "4", "--bf16", "--lr", "1e-4"]


def test_another_module_may_run_the_script() -> None:
    """`parity record` names its own, with a word that has blanks."""
    runner = shlex.join(["accel_bridge.apps.record", '{"out": "a b"}'])
    command = pretrain.training_command(["--runner", runner, "--", "--lr", "1"])
    module = ["-m", "accel_bridge.apps.record", '{"out": "a b"}']
    assert command == [sys.executable, *module, *entry_point("gpt"), "--lr", "1"]


def test_one_process_in_a_batch_job_is_torchruns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rank is not known from Slurm's variables alone; torchrun sets its own."""
    monkeypatch.setenv("SLURM_PROCID", "0")
    assert "accel_bridge.process.launch" in pretrain.training_command(["--lr", "1"])


def test_one_process_of_a_launcher_keeps_its_rank() -> None:
    alone: dict[str, str] = {}
    set_single_process(alone)
    assert alone == SINGLE_PROCESS
    for launched in ({"RANK": "1", "WORLD_SIZE": "2"}, {"SLURM_PROCID": "1"}):
        before = dict(launched)
        set_single_process(launched)
        assert launched == before


def test_several_machines_choose_their_own_rendezvous() -> None:
    words = ["--nnodes", "2", "--node-rank", "1", "--master-addr", "a", "--", "--lr", "1"]
    assert "--standalone" not in pretrain.training_command(words)


def test_more_processes_than_devices(two_devices: Selection) -> None:
    with pytest.raises(SelectionError, match="3 processes were asked for") as caught:
        pretrain.training_command(["--nproc-per-node", "3", "--lr", "1"])
    assert "device 1" in str(caught.value)
    assert "--nproc-per-node 2" in str(caught.value)


def test_more_processes_than_devices_under_torchrun(
    two_devices: Selection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Started by hand with torchrun, the same mistake is met before the first collective."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    with pytest.raises(SelectionError, match="3 processes were started on this machine"):
        activation._check_processes(two_devices)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    activation._check_processes(two_devices)


def test_auto_is_the_number_of_devices(
    two_devices: Selection, capsys: pytest.CaptureFixture[str]
) -> None:
    command = pretrain.training_command(["--nproc-per-node", "auto", "--lr", "1"])
    assert command[command.index("--nproc-per-node") + 1] == "2"
    assert "auto: 2 (device 0; device 1)" in capsys.readouterr().err


def test_auto_on_a_cpu_is_one_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ACCEL_BRIDGE_BACKEND", "cpu")
    command = pretrain.training_command(["--nproc-per-node=auto", "--", "--lr", "1"])
    assert command == [sys.executable, "-m", pretrain.RUNNER, *entry_point("gpt"), "--lr", "1"]
    assert "auto: 1 process, as the cpu backend has no devices" in capsys.readouterr().err
