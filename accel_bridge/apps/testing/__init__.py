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

from accel_bridge.apps.testing._plugin import (
    LAYOUTS,
    MODEL,
    MOE,
    Agree,
    Command,
    FinishedRuns,
    Record,
    accel_bridge_command,
    agree,
    backend,
    finished_runs,
    interpreter,
    pytest_addoption,
    pytest_generate_tests,
    record,
)

__all__ = [
    "LAYOUTS",
    "MODEL",
    "MOE",
    "Agree",
    "Command",
    "FinishedRuns",
    "Record",
    "accel_bridge_command",
    "agree",
    "backend",
    "finished_runs",
    "interpreter",
    "pytest_addoption",
    "pytest_generate_tests",
    "record",
]
