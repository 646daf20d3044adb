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
    assert found["mamba_ssm"]["origin"] == "shim"
    assert found["mamba_ssm"]["version"] == LIBRARIES["mamba_ssm"].version
    assert found["mamba_ssm"]["why"] == "it is not installed"
    assert found[TE.name]["origin"] in ("completed", "shim")
    none = listed(python, ACCEL_BRIDGE_LIBRARIES="none")
    assert {row["origin"] for row in none.values()} <= {"absent", "real"}


def test_a_real_one_that_is_broken_and_a_broken_torch(python: Python, site: Site) -> None:
    site.install("transformer-engine", {"torch": "raise ImportError('libcudart.so.13')"})
    (site.directory / TE.name).mkdir()
    (site.directory / TE.name / "__init__.py").write_text("import os; os.abort()")
    environ = {"PYTHONPATH": str(site.directory)}
    found = listed(python, **environ)
    # The CPU comes first: no build of the real one would work there.
    assert found[TE.name]["why"] == "the real one cannot work on CPU"
    absent = listed(python, ACCEL_BRIDGE_LIBRARIES="none", **environ)[TE.name]
    assert absent["origin"] == "absent"
    assert "excluded by ACCEL_BRIDGE_LIBRARIES=none" in absent["why"]


def test_an_adaptor_that_takes_over_leaves_no_shim(python: Python, site: Site) -> None:
    plugin = """
from accel_bridge.plugin import Delegation, hookimpl

@hookimpl
def accel_bridge_delegations(backend):
    return [Delegation(adaptor="Toy", taken=True, why="for a test")]
"""
    site.install("toy-pkg", {"toy_mod": plugin}, {"toy": "toy_mod"})
    found = listed(python, PYTHONPATH=str(site.directory))
    assert found[TE.name]["origin"] == "absent"
    assert found["mamba_ssm"]["why"] == "it is not installed; Toy has taken over"


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
