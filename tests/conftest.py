"""Fixtures that every test shares."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import warm_python
from plugin_site import Python, Site

# Before torch is imported: tensors are small and other tests run beside, whose processors the
# threads of each operation would take, waiting for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")

#: Fixtures of the parity suite (no torch, no Megatron is imported), and checkpoints that tests of
#: training on every device start from.
pytest_plugins = ["accel_bridge.apps.testing", "end_to_end.checkpoints"]

#: A fixture whose tests need what `make check` has no time for -> their mark.
MARKS = {
    "finished_runs": "megatron",
    "warm": "megatron",
    "megatron_tokenizer": "megatron",
    "libraries": "emulated",
}
#: Tests of `make quick` whose cases for these contracts take long: (file, name).
SLOW_CASES = {
    ("kernels/test_cpu.py", "test_reference_passes_every_case_and_is_outside_of_none[attention]"),
    ("preprocess/test_handlers.py", "test_bytes_are_those_of_mindspeed_llm[alpaca-qwen3]"),
}
#: A word of every command line that trains with Megatron.
TRAINING = "--micro-batch-size"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what takes long by the fixtures that it asks for, and all of end_to_end/."""
    for item in items:
        for fixture, mark in MARKS.items():
            if fixture in getattr(item, "fixturenames", ()):
                item.add_marker(mark)
        if item.path.parent.name == "end_to_end":
            item.add_marker("megatron")
        if (f"{item.path.parent.name}/{item.path.name}", item.name) in SLOW_CASES:
            item.add_marker("slow")


def pytest_configure() -> None:
    """A background job ignores Ctrl-C, and its children would too, those of tests about it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Only a marked test may train, or import Megatron."""
    _running.append(item)
    try:
        return (yield)
    finally:
        _running.pop()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """No module imports Megatron at its top."""
    _collecting.append(collector)
    try:
        return (yield)
    finally:
        _collecting.pop()


#: The test that runs.
_running: list[pytest.Item] = []
#: What is collected.
_collecting: list[pytest.Collector] = []


def _refuse_unmarked_megatron(event: str, details: tuple[object, ...]) -> None:
    if event == "import" and str(details[0]).startswith("megatron.core"):
        what = "imports"
    elif event == "subprocess.Popen" and TRAINING in str(details[1]):
        what = "trains with"
    else:
        return
    if _collecting:
        # Each process of pytest-xdist collects every module: six seconds for each.
        raise RuntimeError(f"{_collecting[-1].nodeid} {what} Megatron when it is collected")
    if not _running:
        return
    if not any(_running[-1].get_closest_marker(mark) for mark in (*MARKS.values(), "example")):
        raise RuntimeError(
            f"{_running[-1].nodeid} {what} Megatron, but `make check` would run it: "
            "mark it with @pytest.mark.megatron"
        )


sys.addaudithook(_refuse_unmarked_megatron)


@pytest.fixture(scope="session", autouse=True)
def _state(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Runs note how they ended; those of tests do not in the home of whoever runs them."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(autouse=True)
def _no_variables_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests must not depend on the ACCEL_BRIDGE_* variables of whoever runs them."""
    for name in list(os.environ):
        if name.startswith("ACCEL_BRIDGE_"):
            monkeypatch.delenv(name)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A directory that acts as site-packages; its modules are forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    yield Site(tmp_path)
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture(scope="session")
def warm() -> str:
    """The Python of `warm_python`."""
    return warm_python.interpreter()


@pytest.fixture
def interpreter(warm: str) -> str:
    """What `accel_bridge.apps.testing` runs, its recordings above all, starts from the warm one."""
    return warm_python.interpreter(active=True)


@pytest.fixture
def python() -> Python:
    """Runs this interpreter in a child process, with further environment variables."""
    return _runner(sys.executable)


@pytest.fixture
def forked(warm: str) -> Python:
    """As ``python``, from the warm one."""
    return _runner(warm)


def _runner(interpreter: str) -> Python:
    def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [interpreter, *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, **environ},
            check=False,
        )

    return run
