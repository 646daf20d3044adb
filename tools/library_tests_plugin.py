"""The pytest plugin of library_tests.py: takes a sample, logs each test's start and end."""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

_SETTINGS: dict[str, Any] = json.loads(os.environ["LIBRARY_TESTS"])
_LOG = Path(_SETTINGS["log"])
_STARTED = time.monotonic()


def _write(**entry: object) -> None:
    with _LOG.open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")


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
            message=_message(report),
        )


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A file that cannot be imported, or that skips itself."""
    if report.outcome != "passed":
        name = f"{report.nodeid}::"  # as a test of its own
        _write(test=name)
        _write(test=name, outcome=report.outcome, seconds=0.0, message=_message(report))


def _message(report: pytest.TestReport | pytest.CollectReport) -> str:
    if report.outcome == "skipped":
        return str(report.longrepr)[-300:]
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        return "\n".join([str(crash.message)[:2000], *_places(report.longrepr)])
    text = str(report.longrepr or "")
    lines = [line[2:].strip() for line in text.splitlines() if line.startswith("E ")]
    named = (line for line in lines if "Error" in line)
    return next(named, lines[-1] if lines else text[-300:])[:2000]


def _places(failure: object) -> list[str]:
    """Where the last calls before a failure were made, the failure itself last."""
    entries = getattr(getattr(failure, "reprtraceback", None), "reprentries", [])
    places = [getattr(entry, "reprfileloc", None) for entry in entries[-8:]]
    return [f"{place.path}:{place.lineno}" for place in places if place is not None]
