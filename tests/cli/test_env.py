"""``accel-bridge env``: works whatever is broken."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from plugin_site import Python, Site, backend_source

from accel_bridge.apps.cli.env import PACKAGES, relevant_variables
from accel_bridge.apps.cli.main import main
from accel_bridge.plugins.manager import load_plugins
from accel_bridge.process import environment

VARIABLES = (*environment.VARIABLES, *load_plugins().variables())

Report = Callable[..., dict[str, Any]]


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Report:
    """What `accel-bridge env --json` says without imports, with variables."""

    def made(**environ: str) -> dict[str, Any]:
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        assert main(["env", "--json", "--no-imports"]) == 0
        document: dict[str, Any] = json.loads(capsys.readouterr().out)
        return document

    return made


def test_what_is_in_it(report: Report) -> None:
    found = report(ACCEL_BRIDGE_BACKEND="cpu")
    assert set(found["packages"]) == set(PACKAGES)
    assert found["packages"]["pluggy"]
    assert found["imports"] == {}
    assert found["hardware"]["chosen"]["backend"] == "cpu"
    assert {"cuda", "ascend", "cpu"} <= set(found["hardware"]["versions"])
    assert set(found["settings"]) == {variable.name for variable in VARIABLES}
    assert found["settings"]["ACCEL_BRIDGE_BACKEND"]["value"] == "cpu"


ABORT = "import os; os.abort()"
BROKEN_AUTOLOAD = """
import os
if os.environ.get('TORCH_DEVICE_BACKEND_AUTOLOAD') != '0':
    raise RuntimeError('Failed to load the backend extension: torch_npu.')
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("torch", "said"),
    [
        (ABORT, "killed by SIGABRT"),
        ("raise ImportError('libcudart.so.13: cannot open')", "ImportError: libcudart.so.13"),
        (BROKEN_AUTOLOAD, "it works with TORCH_DEVICE_BACKEND_AUTOLOAD=0"),
    ],
)
def test_a_broken_torch_is_shown_not_met(python: Python, site: Site, torch: str, said: str) -> None:
    npu = "raise ImportError('libhccl.so: cannot open shared object file')"
    site.install("torch-npu", {"torch": torch, "torch_npu": npu})
    environ = {"PYTHONPATH": str(site.directory), "ACCEL_BRIDGE_BACKEND": "cpu"}
    found = json.loads(python("-m", "accel_bridge", "env", "--json", **environ).stdout)
    assert said in found["imports"]["torch"]
    assert "libhccl.so" in found["imports"]["torch_npu"]
    assert found["packages"]["torch-npu"] == "1.0"
    assert found["hardware"]["chosen"]["backend"] == "cpu"


@pytest.mark.parametrize(
    "hang", ["time.sleep(1000)", pytest.param("while True: pass", marks=pytest.mark.slow)]
)
def test_a_torch_that_hangs_is_named_and_not_waited_for(
    python: Python, site: Site, hang: str
) -> None:
    site.install("torch", {"torch": f"import time\n\n{hang}"})
    began = time.monotonic()
    done = python(
        *("-m", "accel_bridge", "env", "--json", "--wait", "4"), PYTHONPATH=str(site.directory)
    )
    # The default is 45 s; the rest takes a second or two.
    assert time.monotonic() - began < 10
    assert "waiting for `import torch`" in done.stderr
    found = json.loads(done.stdout)["imports"]["torch"]
    assert "did not end in 4 s" in found
    assert f'{site.directory / "torch.py"}", line 3' in found


def test_broken_plugins_and_wrong_settings_are_shown(
    report: Report, site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    site.install("broken-pkg", {"broken_mod": "1 / 0"}, {"broken": "broken_mod"})
    found = report(ACCEL_BRIDGE_LOG="loud", ACCEL_BRIDGE_STRCIT="1")
    assert "not understood" in found["settings"]["ACCEL_BRIDGE_LOG"]["error"]
    assert "did you mean 'ACCEL_BRIDGE_STRICT'" in found["unknown_settings"][0]
    assert "ZeroDivisionError" in str(found["hardware"]["failed_plugins"])
    assert main(["env", "--no-imports"]) == 0
    text = capsys.readouterr().out
    assert "WRONG: ACCEL_BRIDGE_LOG='loud' is not understood" in text
    assert "warning: ACCEL_BRIDGE_STRCIT" in text


def test_a_backend_that_cannot_be_had_is_part_of_the_report(report: Report) -> None:
    found = report(ACCEL_BRIDGE_BACKEND="nonsense")
    assert found["hardware"]["chosen"] is None
    assert "there is no backend 'nonsense'" in found["hardware"]["error"]


def test_a_backend_whose_versions_raise(report: Report, site: Site) -> None:
    source = backend_source("toy").replace(
        "    def device", "    def versions(self):\n        raise OSError('x')\n\n    def device"
    )
    site.install("toy-pkg", {"toy_mod": source}, {"toy": "toy_mod"})
    assert report()["hardware"]["versions"]["toy"] == {"error": "OSError: x"}


def test_variables_of_others_without_secrets() -> None:
    environ = {
        "CUDA_VISIBLE_DEVICES": "0",
        "NCCL_DEBUG": "INFO",
        "RANK": "1",
        "TORCH_API_TOKEN": "abc",
        "LOCALE": "C",
        "HOME": "/",
        "RANKING": "1",
    }
    assert relevant_variables(environ) == {
        "CUDA_VISIBLE_DEVICES": "0",
        "NCCL_DEBUG": "INFO",
        "RANK": "1",
        "TORCH_API_TOKEN": "<set>",
    }
