"""A pytest plugin: run accel_bridge's parity suite on your own backend.

In the ``conftest.py`` at the top of your tests::

    pytest_plugins = ["accel_bridge.apps.testing"]

and in a test module::

    from accel_bridge.apps.testing.suite import *

Every test of the suite then runs once for each backend that this machine has (`accel-bridge
backends` shows them); ``--accel-bridge-backend NAME`` (repeatable) names them instead.

Fixtures for tests of your own:

``backend_name``
    Name of a backend; a test that asks for it runs once for each.
``backend``
    The :class:`accel_bridge.Backend` of that name.
``record``
    ``record(*arguments, processes=1, plugins="", environ={})``: trains :data:`MODEL` with
    ``accel-bridge parity record`` on that backend and returns the path of the recording. Further
    arguments are Megatron's; later ones win. The same call again returns the same file, in every
    process of pytest-xdist.
``agree``
    ``agree(a, b, third=None)``: compares two recordings and fails with the report when they differ.
``accel_bridge_command``
    ``accel_bridge_command(*words, environ={})``: runs the command line; a ``CompletedProcess``.
``finished_runs``
    ``finished_runs.directory(key, make)``: what ``make(directory)`` filled once in the session.
``interpreter``
    The Python that commands run in; override it to run them in another.

Importing this module imports neither torch nor Megatron.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from accel_bridge.apps.comparison import Comparison, compare
from accel_bridge.apps.comparison.report import facts, step_cells, verdict
from accel_bridge.bridge.selection import probe_all
from accel_bridge.device.backend import Backend, ProbedBackend
from accel_bridge.plugins.manager import load_plugins
from accel_bridge.process.environment import Settings
from accel_bridge.recording import Recording, read

# Runs that several tests examine, made once in a test session.


@dataclass(frozen=True)
class FinishedRuns:
    """The output of finished runs; pytest-xdist's processes share it and wait for each other.

    :param root: a directory that all processes of the session know.
    """

    root: Path

    def directory(self, key: object, make: Callable[[Path], object]) -> Path:
        """The directory that ``make`` filled, here or in another process.

        :param key: everything that the content depends on; equal keys have equal ``repr``.
        :param make: called with a new empty directory. When it raises, the next test tries again.
        """
        directory = self.root / hashlib.sha256(repr(key).encode()).hexdigest()[:16]
        finished = directory.with_suffix(".finished")
        with open(directory.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not finished.exists():
                shutil.rmtree(directory, ignore_errors=True)
                directory.mkdir()
                make(directory)
                finished.touch()
        return directory


# The model that tests train, and the layouts that it is trained in.

#: A GPT that trains in seconds but is deep enough for two virtual stages on two ranks. At three
#: times this learning rate its gradient norm jumps, and bfloat16's rounding grows past any limit.
#: Loading data in processes of its own would take a quarter of a short run's time.
MODEL: Final = tuple(
    """
--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 64
--max-position-embeddings 64 --micro-batch-size 2 --global-batch-size 8
--tokenizer-type NullTokenizer --vocab-size 255 --attention-dropout 0 --hidden-dropout 0
--mock-data --num-workers 0 --seed 42 --lr 3e-4 --min-lr 1e-4 --lr-decay-style cosine
--log-interval 1 --eval-iters 0 --eval-interval 1000
""".split()
)

#: Gated experts without bias: what Megatron's expert layers support everywhere.
MOE: Final = tuple(
    "--num-experts 4 --moe-router-topk 2 --moe-token-dispatcher-type alltoall "
    "--moe-aux-loss-coeff 0 --moe-ffn-hidden-size 64 --swiglu --disable-bias-linear".split()
)

#: Name -> (processes, Megatron's arguments): every parallel dimension, and some together.
LAYOUTS: Final = {
    "tp2-sp": (2, "--tensor-model-parallel-size 2 --sequence-parallel"),
    "pp2-virtual": (
        2,
        "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1",
    ),
    "dp2": (2, "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"),
    "cp2": (2, "--context-parallel-size 2"),
    "tp2-pp2": (4, "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"),
}


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
def finished_runs(tmp_path_factory: pytest.TempPathFactory) -> FinishedRuns:
    """Runs of this session, shared by all processes of pytest-xdist."""
    base = tmp_path_factory.getbasetemp()
    root = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "finished-runs"
    root.mkdir(exist_ok=True)
    return FinishedRuns(root)


@pytest.fixture
def interpreter() -> str:
    """The Python that ``accel-bridge`` runs in: this one. A project's own tests may override it."""
    return sys.executable


@pytest.fixture
def accel_bridge_command(interpreter: str) -> Command:
    """Runs ``accel-bridge`` in a process of its own."""

    def run(
        *words: str, environ: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [interpreter, "-m", "accel_bridge", *words],
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
    finished_runs: FinishedRuns,
    accel_bridge_command: Command,
    backend_name: str,
) -> Record:
    """Trains :data:`MODEL` and gives the recording."""

    def run(
        *arguments: str,
        processes: int = 1,
        plugins: str = "",
        environ: Mapping[str, str] | None = None,
        backend: str = backend_name,
        model: str = "gpt",
    ) -> Path:
        variables = {
            "ACCEL_BRIDGE_BACKEND": backend,
            "ACCEL_BRIDGE_PLUGINS": plugins,
            **(environ or {}),
        }

        def make(directory: Path) -> None:
            out = str(directory / f"{backend}.rec")
            done = accel_bridge_command(
                *("parity", "record", "--out", out, "--nproc-per-node", str(processes)),
                *("--model", model, "--", *MODEL, *arguments),
                environ=variables,
            )
            assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]

        key = ("record", model, arguments, processes, sorted(variables.items()))
        return finished_runs.directory(key, make) / f"{backend}.rec"

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
