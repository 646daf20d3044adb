"""Hooks and fixtures of the pytest plugin."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import pytest

from accel_bridge._backend import Backend, ProbedBackend
from accel_bridge._environment import Settings
from accel_bridge._plugins import load_plugins
from accel_bridge._selection import probe_all
from accel_bridge.apps.comparison import Comparison, compare, facts, step_cells, verdict
from accel_bridge.recording import Recording, read

#: A GPT small enough for seconds, deep enough for two virtual stages on two ranks. At three times
#: this learning rate its gradient norm jumps, and bfloat16's rounding grows past any limit.
MODEL: Final = """
--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 64
--max-position-embeddings 64 --micro-batch-size 2 --global-batch-size 8
--tokenizer-type NullTokenizer --vocab-size 255 --attention-dropout 0 --hidden-dropout 0
--mock-data --seed 42 --lr 3e-4 --min-lr 1e-4 --lr-decay-style cosine
--log-interval 1 --eval-iters 0 --eval-interval 1000
""".split()

#: Seconds after which a run counts as stuck.
TIMEOUT: Final = 300

Record = Callable[..., Path]
Agree = Callable[..., Comparison]
Command = Callable[..., "subprocess.CompletedProcess[str]"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option that names backends."""
    parser.addoption(
        "--accel-bridge-backend",
        action="append",
        metavar="NAME",
        help="run the parity suite on this backend (default: on all that this machine has)",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for ``backend_name`` runs once for each backend."""
    if "backend_name" in metafunc.fixturenames:
        metafunc.parametrize("backend_name", _backend_names(metafunc.config))


def _backend_names(config: pytest.Config) -> list[str]:
    named: list[str] | None = config.getoption("--accel-bridge-backend")
    if named:
        return named
    return [probed.backend.name for probed in _probed() if probed.probe.available]


def _probed() -> list[ProbedBackend]:
    plugins = load_plugins(Settings.from_environ().plugins)
    return list(probe_all(plugins))


@pytest.fixture
def backend(backend_name: str) -> Backend:
    """The backend named ``backend_name``."""
    found = {probed.backend.name: probed.backend for probed in _probed()}
    return found[backend_name]


@pytest.fixture(scope="session")
def recordings() -> dict[object, Path]:
    """Recordings of this session, by what made them."""
    return {}


@pytest.fixture(scope="session")
def accel_bridge_command() -> Command:
    """Runs ``accel-bridge`` in a process of its own."""

    def run(
        *words: str, environ: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "accel_bridge", *words],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT,
            # One thread for each process: several train on one machine.
            env={**os.environ, "OMP_NUM_THREADS": "1", **(environ or {})},
            check=False,
        )

    return run


@pytest.fixture
def record(
    recordings: dict[object, Path],
    accel_bridge_command: Command,
    backend_name: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Record:
    """Trains :data:`MODEL` and gives the recording."""

    def run(
        *arguments: str,
        processes: int = 1,
        plugins: str = "",
        environ: Mapping[str, str] | None = None,
        backend: str = backend_name,
    ) -> Path:
        variables = {
            "ACCEL_BRIDGE_BACKEND": backend,
            "ACCEL_BRIDGE_PLUGINS": plugins,
            **(environ or {}),
        }
        key = (arguments, processes, tuple(sorted(variables.items())))
        if key not in recordings:
            out = tmp_path_factory.mktemp("recording") / f"{backend}.rec"
            done = accel_bridge_command(
                *("parity", "record", "--out", str(out), "--nproc-per-node", str(processes)),
                *("--", *MODEL, *arguments),
                environ=variables,
            )
            assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
            recordings[key] = out
        return recordings[key]

    return run


@pytest.fixture
def agree() -> Agree:
    """Fails with the whole report when two recordings disagree."""

    def check(a: Path, b: Path, third: Path | None = None) -> Comparison:
        exact: Recording | None = None if third is None else read(third)
        found = compare(read(a), read(b), exact)
        lines = [*(" ".join(line) for line in facts(found)), *verdict(found)]
        lines += ["  ".join(cells) for cells in step_cells(found)]
        assert found.passed, "\n".join(lines)
        return found

    return check
