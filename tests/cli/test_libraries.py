"""``accel-bridge libraries``, and the same table in ``accel-bridge env``."""

from __future__ import annotations

import json
from typing import Any

import pytest
from plugin_site import Python, Site

from accel_bridge.libraries import LIBRARIES

TE = LIBRARIES["transformer_engine"]


def listed(python: Python, **environ: str) -> dict[str, Any]:
    """What the command says of each library on the CPU, by name."""
    environ = {"ACCEL_BRIDGE_BACKEND": "cpu", "ACCEL_BRIDGE_LIBRARIES": "all", **environ}
    done = python("-m", "accel_bridge", "libraries", "--json", **environ)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["backend"] == "cpu"
    return {row["name"]: row for row in document["libraries"]}


def test_every_library_is_listed(python: Python) -> None:
    found = listed(python)
    assert list(found) == list(LIBRARIES)
    assert found[TE.name]["origin"] == "stand-in"
    assert found[TE.name]["version"] == TE.version
    assert found[TE.name]["why"] == "it is not installed"
    none = listed(python, ACCEL_BRIDGE_LIBRARIES="none")
    assert {row["origin"] for row in none.values()} <= {"absent", "real"}


def test_the_table_says_the_same_here_and_in_env(python: Python) -> None:
    environ = {"ACCEL_BRIDGE_BACKEND": "cpu", "ACCEL_BRIDGE_LIBRARIES": "all,-apex"}
    table = python("-m", "accel_bridge", "libraries", **environ).stdout
    assert TE.name in table
    assert "on cpu" in table
    assert table in python("-m", "accel_bridge", "env", "--no-imports", **environ).stdout
    document = json.loads(
        python("-m", "accel_bridge", "env", "--no-imports", "--json", **environ).stdout
    )
    rows = document["libraries"]["libraries"]
    assert [row["name"] for row in rows] == list(LIBRARIES)


def test_a_real_one_that_is_broken_and_a_broken_torch(python: Python, site: Site) -> None:
    site.install("transformer-engine", {"torch": "raise ImportError('libcudart.so.13')"})
    (site.folder / TE.name).mkdir()
    (site.folder / TE.name / "__init__.py").write_text("import os; os.abort()")
    environ = {"PYTHONPATH": str(site.folder)}
    found = listed(python, **environ)
    # The CPU comes first: no build of the real one would work there.
    assert found[TE.name]["why"] == "the real one cannot work on CPU"
    absent = listed(python, ACCEL_BRIDGE_LIBRARIES="none", **environ)[TE.name]
    assert absent["origin"] == "absent"
    assert "excluded by ACCEL_BRIDGE_LIBRARIES=none" in absent["why"]


def test_an_adaptor_that_takes_over_leaves_no_stand_in(python: Python, site: Site) -> None:
    plugin = """
from accel_bridge.plugin import Takeover, hookimpl

@hookimpl
def accel_bridge_takeovers(backend):
    return [Takeover(adaptor="Toy", taken=True, why="for a test")]
"""
    site.install("toy-pkg", {"toy_mod": plugin}, {"toy": "toy_mod"})
    found = listed(python, PYTHONPATH=str(site.folder))
    assert found[TE.name]["origin"] == "absent"
    assert found[TE.name]["why"] == "it is not installed; Toy has taken over"


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"ACCEL_BRIDGE_LIBRARIES": "x,-x"}, "both asked for and excluded"),
        ({"ACCEL_BRIDGE_BACKEND": "cdua"}, "did you mean 'cuda'?"),
        ({"ACCEL_BRIDGE_MINDSPEED": "require"}, "MindSpeed was required"),
    ],
)
def test_what_stops_it(python: Python, environ: dict[str, str], said: str) -> None:
    done = python("-m", "accel_bridge", "libraries", **environ)
    assert done.returncode == 2
    assert said in done.stderr
    assert "next:     " in done.stderr
    shown = python("-m", "accel_bridge", "env", "--no-imports", **environ)
    assert shown.returncode == 0
    assert said in shown.stdout


def test_a_name_without_a_stand_in_is_warned_about(python: Python) -> None:
    done = python("-m", "accel_bridge", "libraries", ACCEL_BRIDGE_LIBRARIES="transformer_engin")
    assert "did you mean 'transformer_engine'" in done.stderr
