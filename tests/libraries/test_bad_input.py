"""Recipes that a device cannot compute, and checkpoints that hold what must not be loaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.slow  # imports torch and Transformer Engine in a process of its own
SCRIPT = """
import json, os, pickle, sys
import accel_bridge.auto
import torch
import transformer_engine.pytorch as te
from transformer_engine.common import recipe

def said(act):
    try:
        act()
    except Exception as error:
        return [type(error).__name__, str(error)]
    return ["nothing", ""]

def products(chosen):
    linear = te.Linear(32, 32, device="cpu", params_dtype=torch.bfloat16)
    with te.fp8_autocast(enabled=True, fp8_recipe=chosen):
        linear(torch.ones(32, 32, dtype=torch.bfloat16))
    return linear.get_extra_state()

class Call:
    def __init__(self, function, *arguments):
        self.reduced = function, arguments
    def __reduce__(self):
        return self.reduced

def named(module, name):
    '''A pickle that calls a function by its name.'''
    text = b"\\x80\\x04" + b"".join(
        b"\\x8c" + bytes([len(word)]) + word.encode() for word in (module, name)
    )
    return text + b"\\x93(" + b"\\x8c\\x04true" + b"tR."

def loaded(content):
    linear = te.Linear(32, 32, device="cpu")
    linear.set_extra_state(torch.frombuffer(bytearray(content), dtype=torch.uint8))

found = {
    "mxfp8": said(lambda: products(recipe.MXFP8BlockScaling())),
    "nvfp4": said(lambda: products(recipe.NVFP4BlockScaling())),
    "tensorwise": said(lambda: products(recipe.Float8CurrentScaling())),
    "newer": said(lambda: loaded(named("transformer_engine.common.recipe", "FutureScaling"))),
    "module": said(lambda: loaded(named("transformer_engine.pytorch.future", "Scaling"))),
    "system": said(lambda: loaded(pickle.dumps(Call(os.system, "touch executed")))),
    "dotted": said(lambda: loaded(named("transformer_engine.common.recipe", "os.system"))),
    "member": said(lambda: loaded(pickle.dumps(Call(getattr, os, "system")))),
    "noise": said(lambda: loaded(b"no pickle at all")),
    "own": said(lambda: loaded(products(recipe.DelayedScaling()).numpy().tobytes())),
}
print(json.dumps({**found, "executed": os.path.exists("executed")}))
"""


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What each bad input led to: the error's class and text."""
    environ = {"ACCEL_BRIDGE_BACKEND": "cpu", "ACCEL_BRIDGE_LIBRARIES": "transformer_engine"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=tmp_path_factory.mktemp("bad"),
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def test_what_works_here_is_not_refused(outcome: dict[str, Any]) -> None:
    assert outcome["tensorwise"] == ["nothing", ""]
    assert outcome["own"] == ["nothing", ""]


@pytest.mark.parametrize(("recipe", "name"), [("mxfp8", "MXFP8"), ("nvfp4", "NVFP4")])
def test_a_recipe_that_the_device_cannot_compute(
    outcome: dict[str, Any], recipe: str, name: str
) -> None:
    kind, text = outcome[recipe]
    assert kind != "nothing"
    assert name in text


@pytest.mark.parametrize("case", ["newer", "module"])
def test_a_checkpoint_of_a_newer_version_is_named(outcome: dict[str, Any], case: str) -> None:
    kind, text = outcome[case]
    assert kind == "ExtraStateError"
    assert "Scaling" in text
    assert "newer Transformer Engine" in text
    assert "next:" in text


@pytest.mark.parametrize("case", ["system", "dotted", "member"])
def test_only_known_classes_are_loaded(outcome: dict[str, Any], case: str) -> None:
    assert "rror" in outcome[case][0]
    assert not outcome["executed"]


def test_noise_is_an_error(outcome: dict[str, Any]) -> None:
    assert outcome["noise"][0] != "nothing"
