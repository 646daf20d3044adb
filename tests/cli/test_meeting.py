"""Where ranks meet: what cannot work is refused within 15 s, and what waits is named."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest
import warm_python

from accel_bridge.process import meeting
from accel_bridge.process.meeting import MeetingError, check

NOWHERE = "no-such-host.invalid"
#: As a launcher starts a rank; the script asks for a process group.
SCRIPT = "import torch.distributed as d; d.init_process_group('gloo')"
WAYS = {
    "rank": ["-m", "accel_bridge.run", "SCRIPT"],
    "auto": ["-c", f"import accel_bridge.auto; {SCRIPT}"],
    "torchrun": [
        *("-m", "accel_bridge", "run", "--", sys.executable, "-m", "torch.distributed.run"),
        *("--nnodes", "2", "--node-rank", "RANK", "--master-addr", "HOST", "--master-port", "PORT"),
        "SCRIPT",
    ],
    "launch": [
        *("-m", "accel_bridge.process.launch", "--nnodes", "2", "--node-rank", "RANK"),
        *("--master-addr", "HOST", "--master-port", "PORT", "SCRIPT"),
    ],
    "c10d": [
        *("-m", "accel_bridge.process.launch", "--nnodes", "2", "--rdzv-backend", "c10d"),
        *("--rdzv-endpoint", "HOST:PORT", "SCRIPT"),
    ],
}


@pytest.fixture
def port() -> Iterator[int]:
    """One that this process listens at."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


def start(way: str, directory: Path, host: str, port: int, rank: int = 0) -> subprocess.Popen[str]:
    (directory / "script.py").write_text(SCRIPT)
    values = {"SCRIPT": str(directory / "script.py"), "HOST": host, "PORT": str(port)}
    words = WAYS[way]
    for key, value in {**values, "RANK": str(rank)}.items():
        words = [word if word == SCRIPT else word.replace(key, value) for word in words]
    environ = {"ACCEL_BRIDGE_BACKEND": "cpu"}
    if way in ("rank", "auto"):
        environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": host}
        environ |= {"MASTER_PORT": str(port), "LOCAL_RANK": "0"}
    # `accel-bridge run` and what it starts are real.
    python = sys.executable if way == "torchrun" else warm_python.interpreter()
    return subprocess.Popen(
        [python, *words],
        env={**os.environ, **environ},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_an_address_that_is_none_is_refused(tmp_path: Path) -> None:
    """Side by side: each waits ten seconds for the address."""
    ways = ("rank", "torchrun", "c10d")
    started = [start(way, tmp_path, NOWHERE, 29411, rank=1) for way in ways]
    for process in started:
        _, said = process.communicate(timeout=100)
        assert process.returncode == 1, said
        assert f"{NOWHERE!r} is no address" in said
        assert "evidence: gaierror" in said
        assert "Traceback" not in said


@pytest.mark.slow
def test_a_port_in_use_is_refused(tmp_path: Path, port: int) -> None:
    for process in [start(way, tmp_path, "127.0.0.1", port) for way in ("auto", "launch")]:
        _, said = process.communicate(timeout=100)
        assert process.returncode == 1, said
        assert f"The port {port}, at which the ranks are to meet, is in use." in said
        assert f"ss -ltnp 'sport = :{port}'" in said
        assert "Traceback" not in said


def test_an_address_gets_a_moment_to_resolve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of containers come a moment after them."""
    answers = iter([socket.gaierror("not yet"), []])

    def resolve(*_: object) -> object:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    check("later", 0, hosts=False)


def test_a_resolver_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "RESOLVES", 0.2)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: time.sleep(1))
    with pytest.raises(MeetingError, match="no answer from the resolver"):
        check("slow", 0, hosts=False)


def test_a_port_that_is_free_or_another_machines(port: int) -> None:
    check("127.0.0.1", free_port(), hosts=True)
    check("127.0.0.1", port, hosts=False)
    check("127.0.0.1", 0, hosts=True)


def test_nobody_answers_and_it_waits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(meeting, "ANSWERS", 0.1)
    port = free_port()
    with meeting._watched("rank", "127.0.0.1", port, 1, 2):
        time.sleep(2)
    assert f"rank 1: nobody answers at 127.0.0.1:{port}" in capsys.readouterr().err


def test_a_rank_that_does_not_come_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from torch.distributed import TCPStore

    monkeypatch.setattr(meeting, "COMES", 0.5)
    port = free_port()
    store = TCPStore("127.0.0.1", port, 4, True, timedelta(seconds=60), wait_for_workers=False)
    said = ""
    with ExitStack() as ranks:
        for rank in (0, 2):
            monkeypatch.setattr(meeting, "_meetings", 0)  # these are two processes
            ranks.enter_context(meeting._watched("rank", "127.0.0.1", port, rank, 4))
        end = time.monotonic() + 20
        while "rank 1, 3 of 4" not in said and time.monotonic() < end:
            time.sleep(0.1)
            said += capsys.readouterr().err
    assert "rank 1, 3 of 4 did not come" in said
    assert said.count("did not come") == 1
    del store


@pytest.mark.slow
def test_ranks_that_come_meet(tmp_path: Path) -> None:
    port = free_port()
    both = [start("rank", tmp_path, "127.0.0.1", port, rank) for rank in (0, 1)]
    said = [one.communicate(timeout=100)[1] for one in both]
    assert [one.returncode for one in both] == [0, 0], said
    assert "did not come" not in "".join(said)
