"""The pytest plugin of library_tests.py: takes a sample, logs each test's start and end."""

from __future__ import annotations

import ast
import contextlib
import importlib
import json
import os
import pkgutil
import random
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from library_tests_processes import spawn_from
from suite_outcomes import said

_SETTINGS: dict[str, Any] = json.loads(os.environ["LIBRARY_TESTS"])
_LOG = Path(_SETTINGS["log"])
_STARTED = time.monotonic()


def _write(**entry: object) -> None:
    with _LOG.open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")


def _refused(*args: object, **kwargs: object) -> None:
    raise NotImplementedError("the shim refuses this name")


def _module(name: str) -> types.ModuleType:
    """The shim's module, or a new one under its name."""
    try:
        return importlib.import_module(name)
    except ImportError:
        sys.modules[name] = types.ModuleType(name)
        return sys.modules[name]


def _defined(source: Path, given: dict[str, Any]) -> dict[str, Any]:
    """What a file defines by itself; definitions that need what is absent are left out.

    :param given: what it imports; it stays where an import of the file fails.
    """
    names: dict[str, Any] = {"__name__": source.stem, **given}
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        code = compile(ast.Module([node], []), str(source), "exec")
        with contextlib.suppress(Exception):
            exec(code, names)
    names.update(given)
    return names


def _value(given: object) -> object:
    """A value, or what ``@a.name`` names."""
    by_name = isinstance(given, str) and given.startswith("@")
    return pkgutil.resolve_name(given[1:]) if by_name else given


def _prepare() -> None:
    """Put what the file imports, and a shim has no use for, where it looks for it."""
    for name, absent in _SETTINGS["absent"].items():
        for attribute in absent:
            setattr(_module(name), attribute, _refused)
    asked = {
        name: {attribute: _value(value) for attribute, value in values.items()}
        for name, values in _SETTINGS["given"].items()
    }
    for place, borrowed in _SETTINGS["borrowed"].items():
        name, path = place.partition("/")[0], f"{place.replace('.', '/')}.py"
        defined = _defined(Path(_SETTINGS["tree"], path), asked.get(name, {}))
        for attribute in borrowed:
            setattr(_module(name), attribute, defined[attribute])
    for name, given in asked.items():
        for attribute, value in given.items():
            setattr(_module(name), attribute, value)


if _SETTINGS["preload"]:
    spawn_from(_SETTINGS["preload"])
# Now, before pytest loads the conftest.py of the tests.
_prepare()


@pytest.fixture(autouse=True, scope="module")
def _modes() -> Iterator[None]:
    """Files that share a process do not share the mode that one of them sets."""
    yield
    if (torch := sys.modules.get("torch")) is not None and "torch_npu" in sys.modules:
        torch.npu.set_compile_mode(jit_compile=False)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The sample, without the tests of an earlier process."""
    chosen = list(items)
    if 0 < _SETTINGS["sample"] < len(items):
        numbers = random.Random(_SETTINGS["seed"]).sample(range(len(items)), _SETTINGS["sample"])
        chosen = [items[number] for number in sorted(numbers)]
    lines = _LOG.read_text(encoding="utf-8").splitlines() if _LOG.is_file() else []
    done = {json.loads(line)["test"] for line in lines}
    items[:] = [item for item in chosen if item.nodeid not in done]


@pytest.hookimpl(trylast=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """The last test, when the file's time is over."""
    if 0 < _SETTINGS["budget"] < time.monotonic() - _STARTED:
        item.session.shouldstop = "the file's time is over"


def pytest_runtest_logstart(nodeid: str) -> None:
    _write(test=nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        _write(
            test=report.nodeid,
            outcome=report.outcome,
            seconds=report.duration,
            message="\n".join(said(report)),
        )


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A file that cannot be imported, or that skips itself."""
    if report.outcome != "passed":
        name = f"{report.nodeid}::"  # as a test of its own
        _write(test=name)
        _write(test=name, outcome=report.outcome, seconds=0.0, message="\n".join(said(report)))
