"""Recordings of a training loop on megatron.core that is not Megatron's own."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from accel_bridge.apps.testing import Command, FinishedRuns
from accel_bridge.recording import read

SCRIPT = Path(__file__).with_name("own_loop.py")


def start(python: str, out: Path, *words: str, ranks: int = 1) -> list[list[float]]:
    """Record the loop; loss and gradient norm of each step, as it printed them."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = [python, "-m", "accel_bridge", "run", "--record", out, SCRIPT, *words]
    started = [
        subprocess.Popen(
            list(map(str, command)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "ACCEL_BRIDGE_BACKEND": "cpu",
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "localhost",
                "MASTER_PORT": str(port),
            },
        )
        for rank in range(ranks)
    ]
    ended = [(*one.communicate(timeout=120), one.returncode) for one in started]
    assert all(status == 0 for *_, status in ended), ended
    assert f"recorded 3 steps in {out}" in ended[0][1]
    return [[float(word) for word in line.split()] for line in ended[-1][0].splitlines()]


def same(printed: list[list[float]], recorded: Path) -> bool:
    """Whether the recording has the steps that the loop printed."""
    steps = [[step.loss, step.gradient_norm] for step in read(recorded).steps]
    return [pytest.approx(row, rel=1e-6) for row in printed] == steps


@pytest.fixture
def one(finished_runs: FinishedRuns, warm: str) -> Path:
    """A recording of the loop on one rank."""

    def make(directory: Path) -> None:
        out = directory / "one.rec"
        assert same(start(warm, out), out)

    return finished_runs.directory("own loop", make) / "one.rec"


@pytest.mark.megatron
def test_one_and_two_ranks_agree_and_an_injected_fault_is_found(
    one: Path, warm: str, accel_bridge_command: Command, tmp_path: Path
) -> None:
    two, wrong = tmp_path / "two.rec", tmp_path / "wrong.rec"
    assert same(start(warm, two, ranks=2), two)
    assert same(start(warm, wrong, "--injected"), wrong)
    assert accel_bridge_command("parity", "compare", str(one), str(two)).returncode == 0
    assert accel_bridge_command("parity", "compare", str(one), str(wrong)).returncode != 0
    found = read(one)
    assert found.identity["model"]["hidden_size"] == 32
    assert found.identity["training"]["global_batch_size"] == 4
    kinds = {item.kind for item in found.observations}
    assert kinds == {"weight", "output", "gradient", "weight gradient"}


@pytest.mark.megatron
def test_gradients_of_a_loss_that_is_divided_by_tokens_at_the_end(
    one: Path, warm: str, tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens.rec"
    start(warm, tokens, "--per-token", ranks=2)
    found, other = read(tokens), read(one)
    # The gradients of all weights have the norm that the optimizer clipped by.
    squares = sum(
        item.moments.squares
        for item in found.observations
        if item.step == 1 and item.kind == "weight gradient"
    )
    assert squares**0.5 == pytest.approx(found.steps[0].gradient_norm, rel=1e-5)
    # As long as every row has as many tokens, both ways give the same gradients.
    rms = {
        (item.kind, item.name): item.moments.rms
        for item in other.observations
        if item.step == 1 and "gradient" in item.kind
    }
    for item in found.observations:
        if item.step == 1 and "gradient" in item.kind:
            assert item.moments.rms == pytest.approx(rms[item.kind, item.name], rel=1e-4, abs=1e-8)
