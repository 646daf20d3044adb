"""Ranks: counts and variables that mean nothing, and what is left when a launcher dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import alive, ends, until

from accel_bridge.backends.cpu import CpuBackend
from accel_bridge.bridge import activation
from accel_bridge.bridge.selection import Selection
from accel_bridge.errors import BridgeError, EnvironmentVariableError
from accel_bridge.pretrain.command import training_command
from accel_bridge.process.launch import of_failed_rank
from accel_bridge.process.ranks import LAUNCHER, check_variables
from accel_bridge.run import _check_module
from accel_bridge.run import main as run_main

COUNTS = ["0", "-1", "two", "1.5", "", "99999999999999999999", "9" * 5000, "\u0663", "1e3"]
NO_SUCH_NODE = "is not below --nnodes"  # it would wait for ever
REFUSED = [
    *((["--nproc-per-node", count], "--nproc-per-node") for count in COUNTS),
    (["--nnodes", "x"], "--nnodes"),
    (["--node-rank=-1"], "--node-rank"),
    (["--master-port", "http"], "--master-port"),
    (["--max-restarts=-2"], "--max-restarts"),
    (["--node-rank", "1"], NO_SUCH_NODE),
    (["--nnodes", "2", "--node-rank", "2"], NO_SUCH_NODE),
    (["--nnodes", "1:4", "--node-rank", "04", "--rdzv-backend", "c10d"], NO_SUCH_NODE),
    (["--nnodes", "2", "--node-rank", "9" * 5000], NO_SUCH_NODE),
    (["--nnodes", "1:4"], "needs a rendezvous"),
]


@pytest.mark.parametrize(("words", "said"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_no_launcher_can_start(words: list[str], said: str) -> None:
    with pytest.raises(BridgeError, match=said) as caught:
        training_command([*words, "--lr", "1"])
    assert len(str(caught.value)) < 6000


def test_nodes_that_come_and_go_meet_at_a_rendezvous() -> None:
    rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "host:1"]
    assert "1:4" in training_command(["--nnodes", "1:4", *rendezvous, "--lr", "1"])
    assert "2:2" in training_command(["--nnodes", "2:2", "--node-rank", "1", "--lr", "1"])


@pytest.mark.parametrize("words", [[], ["--"], ["--nproc-per-node", "1"]])
def test_no_arguments_at_all(words: list[str]) -> None:
    with pytest.raises(BridgeError, match="nothing says what to train") as caught:
        training_command(words)
    assert "accel-bridge demo" in caught.value.next


@pytest.mark.parametrize("name", ["no_such_module", "json.no_such", "no.such", "..x", "", "json."])
def test_a_module_that_is_not_there(name: str) -> None:
    with pytest.raises(BridgeError, match="there is no module"):
        _check_module(name)


@pytest.mark.parametrize(
    ("codes", "told"),
    [
        ({0: 1, 1: -9}, "rank 1 was killed by SIGKILL."),
        ({0: 1, 1: -15}, "rank 0 failed."),
        ({0: -11, 1: 1}, "rank 0 was killed by SIGSEGV."),
        ({2: -15, 3: -15}, "rank 2 was killed by SIGTERM."),
    ],
)
def test_a_rank_that_was_killed_is_the_cause(codes: dict[int, int], told: str) -> None:
    """Its neighbours fail too: their connections to it end."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

    failures = {rank: ProcessFailure(rank, 7, code, "none") for rank, code in codes.items()}
    assert of_failed_rank(ChildFailedError("x", failures)).what == told


def test_help_is_said_by_one_process() -> None:
    command = training_command(["--nproc-per-node", "4", "--", "--help"])
    assert command[-1] == "--help"
    assert "accel_bridge.process.launch" not in command


@pytest.mark.parametrize(
    "variables",
    [
        {"LOCAL_WORLD_SIZE": "abc"},
        {"LOCAL_WORLD_SIZE": "0"},
        {"LOCAL_WORLD_SIZE": ""},
        {"RANK": "-1"},
        {"RANK": "2", "WORLD_SIZE": "2"},
        {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "1"},
        {"WORLD_SIZE": "9" * 30},
        {"MASTER_PORT": "70000"},
    ],
    ids=str,
)
def test_variables_of_a_launcher_that_mean_nothing(variables: dict[str, str]) -> None:
    with pytest.raises(EnvironmentVariableError) as caught:
        check_variables(variables)
    assert next(iter(variables)) in caught.value.what


#: Rank 1 dies in the first attempt; in the second the ranks meet again.
RESTARTED = """
import os, signal
import torch, torch.distributed as dist
dist.init_process_group("gloo")
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
if (attempt, dist.get_rank()) == ("0", 1):
    os.kill(os.getpid(), signal.SIGKILL)
total = torch.ones(1)
dist.all_reduce(total)
os.write(1, f"attempt {attempt}: {total.item()}\\n".encode())
dist.barrier()
dist.destroy_process_group()
"""


#: The rank writes its pid and sleeps.
RANK = """
import os, pathlib, time
from accel_bridge.process.ranks import die_with_launcher
die_with_launcher()
pathlib.Path({file!r}).write_text(str(os.getpid()))
time.sleep(60)
"""
#: A launcher that starts one rank.
LAUNCHER_OF_ONE = """
import os, subprocess, sys
subprocess.run([sys.executable, "-c", {rank!r}], env=dict(os.environ, TORCHELASTIC_RUN_ID="x"))
"""
#: A rank that spawns a helper.
SPAWNING = """
import multiprocessing, os, pathlib, time
from accel_bridge.process.ranks import end_with_parent
{in_main}
def child(file):
    {in_child}
    pathlib.Path(file).write_text(str(os.getpid()))
    time.sleep(60)
if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=child, args=({file!r},))
    process.start()
    process.join()
"""


@pytest.mark.parametrize("program", ["launcher", "main", "child"])
def test_a_child_ends_with_who_started_it(program: str, tmp_path: Path) -> None:
    """The main module is where `import accel_bridge.auto` says so."""
    file, script = tmp_path / "pid", tmp_path / "script.py"
    calls = {f"in_{place}": "end_with_parent()" * (place == program) for place in ("main", "child")}
    code = SPAWNING.format(file=str(file), **{k: call or "pass" for k, call in calls.items()})
    if program == "launcher":
        code = LAUNCHER_OF_ONE.format(rank=RANK.format(file=str(file)))
    script.write_text(code)
    parent = subprocess.Popen([sys.executable, str(script)])
    assert until(lambda: file.exists() and file.read_text())
    pid = int(file.read_text())
    assert alive(pid)
    parent.kill()
    parent.wait()
    assert ends(pid)


#: Its child asks to end with it when it has died.
ORPHAN = """
import os, time
from accel_bridge.process.ranks import be_killed_with_parent
parent = os.getpid()
if os.fork() == 0:
    while os.getppid() == parent:
        time.sleep(0.01)
    be_killed_with_parent(parent)
    print("alive")
"""


def test_a_parent_that_died_before_the_child_asked() -> None:
    command = [sys.executable, "-c", ORPHAN]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == ""


def test_a_launcher_that_died_before_the_rank_asked(tmp_path: Path) -> None:
    """The rank ends by itself: the kernel's signal is for parents that die later."""
    file = tmp_path / "pid"
    gone = subprocess.Popen(["true"])
    gone.wait()
    env = {**os.environ, "TORCHELASTIC_RUN_ID": "x", LAUNCHER: str(gone.pid)}
    code = RANK.format(file=str(file))
    done = subprocess.run([sys.executable, "-c", code], env=env, timeout=30, check=False)
    assert done.returncode == -signal.SIGKILL
    assert not file.exists()


def test_restarted_ranks_meet_again(tmp_path: Path, warm: str) -> None:
    """torch's store keeps the dead ranks' addresses: without a new one they never connect."""
    script = tmp_path / "script.py"
    script.write_text(RESTARTED)
    command = [warm, "-m", "accel_bridge.process.launch", "--standalone", "--max-restarts", "1"]
    done = subprocess.run(
        [*command, "--nproc-per-node", "2", str(script)],
        capture_output=True,
        text=True,
        timeout=150,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == "attempt 1: 2.0\n" * 2


#: Rank 1 is stopped; rank 0 notices, says who it was and fails.
STOPPED = """
import os, signal, sys, time
from accel_bridge.process.ranks import neighbours
if os.environ["RANK"] == "1":
    os.kill(os.getpid(), signal.SIGSTOP)
while "T" not in [state for _, _, state in neighbours()]:
    time.sleep(0.05)
print([rank for rank, _, _ in neighbours()], time.time(), flush=True)
sys.exit(2)
"""


@pytest.mark.slow
def test_a_stopped_rank_is_named_and_does_not_hold_the_end_up(tmp_path: Path) -> None:
    """torchrun alone waits for 30 s, kills it, and its death is then told as the cause."""
    script = tmp_path / "script.py"
    script.write_text(STOPPED)
    command = [sys.executable, "-m", "accel_bridge.process.launch", "--standalone"]
    done = subprocess.run(
        [*command, "--nproc-per-node", "2", str(script)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    seconds = time.time() - float(done.stdout.rpartition(" ")[2])
    assert done.stdout.startswith("[1] ")
    assert (done.returncode, "was killed" in done.stderr) == (2, False), done.stderr
    assert seconds < 20


def test_more_processes_than_cores_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    backend = CpuBackend()
    selection = Selection(backend, "cpu", "fallback", ())
    for count, told in (("1", False), ("4000", True)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", count)
        activation._check_processes(selection)
        assert ("4000 processes share" in capsys.readouterr().err) == told


def test_a_script_whose_name_no_file_can_have(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main(["n" * 300]) == 2
    assert "there is no script" in capsys.readouterr().err


@pytest.mark.parametrize("script", ["/proc/self/mem", "locked.py"])
def test_a_script_that_cannot_be_read(
    script: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("locked.py").write_text("")
    original = open

    def locked(name: object, *rest: object, **more: object) -> object:
        if name == "locked.py":  # the superuser may read it
            raise PermissionError(13, "Permission denied", name)
        return original(name, *rest, **more)  # type: ignore[call-overload]

    monkeypatch.setattr("builtins.open", locked)
    assert run_main([script]) == 2
    assert f"error: the script '{script}' cannot be read" in capsys.readouterr().err
