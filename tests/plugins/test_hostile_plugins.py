"""Plugins that end the process, never come back, or give nonsense: each is named."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from plugin_site import Python, Site, backend_source

from accel_bridge.apps.cli.main import main
from accel_bridge.errors import PluginError
from accel_bridge.plugins import manager
from accel_bridge.plugins.manager import load_plugins

HOOK = "from accel_bridge.plugin import hookimpl\n@hookimpl\ndef accel_bridge_backends():\n    "
OWN = "class Own(BaseException): pass\nraise Own('mine')"
UNSHOWABLE = """
class Unshowable(Exception):
    def __repr__(self): raise ValueError("no repr")
    __str__ = __repr__
class Broken:
    def __getattr__(self, name): raise RuntimeError(name)
"""
DEADLY = {
    "os._exit at import": "import os\nos._exit(0)",
    "os._exit kept": "from os import _exit\n_exit(0)",
    "os._exit in a hook": f"import os\n{HOOK}os._exit(0)",
    "a BaseException at import": OWN,
    "a BaseException in a hook": f"{HOOK}raise GeneratorExit('mine')",
    "SystemExit in a hook": f"{HOOK}raise SystemExit(0)",
    "zeros": "\0\0",
    "another encoding": "# coding: no-such\n",
    "an endless recursion": "def f(): f()\nf()",
    "an error that acts on a terminal": "raise ValueError('\x1b[31m')",
    "an error of many lines in a hook": f"{HOOK}raise RuntimeError('a\\n' * 500)",
    "an error without words in a hook": f"{HOOK}raise KeyError",
    "an endless recursion in a hook": f"{HOOK}return accel_bridge_backends()",
    "a raising generator": f"{HOOK}return (1 / 0 for _ in range(2))",
    "an error that cannot be shown": f"{UNSHOWABLE}raise Unshowable",
    "objects that cannot be shown": f"{UNSHOWABLE}{HOOK}return [Unshowable()]",
    "a broken object": f"{UNSHOWABLE}{HOOK}return [Broken()]",
    "a text without end": f"{HOOK}return ['x' * 10**6]",
}


def install(site: Site, source: str) -> dict[str, str]:
    site.install("deadly", {"deadly_mod": source}, {"deadly": "deadly_mod"})
    return {"PYTHONPATH": str(site.directory), "ACCEL_BRIDGE_BACKEND": "cpu"}


@pytest.mark.parametrize("name", DEADLY)
def test_a_plugin_that_ends_the_process_is_a_failure(
    site: Site, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    install(site, DEADLY[name])
    before = os._exit
    (failed,) = load_plugins().failed
    assert (failed.name, failed.distribution) == ("deadly", "deadly 1.0")
    assert os._exit is before
    main(["plugins"])
    shown = "".join(capsys.readouterr())
    assert "deadly" in shown
    assert "Traceback" not in shown
    assert "\x1b" not in shown


def test_the_program_goes_on_and_the_plugin_is_named(site: Site, forked: Python) -> None:
    environ = install(site, DEADLY["os._exit at import"])
    code = "import torch; print(torch.ones(1, device='cuda').device)"
    done = forked("-m", "accel_bridge", "run", "--", sys.executable, "-c", code, **environ)
    assert (done.returncode, done.stdout) == (0, "cpu\n"), done.stderr
    assert "plugin 'deadly' (deadly 1.0) failed at import: SystemExit: it called os._exit(0)" in (
        done.stderr
    )


def test_a_program_without_torch_loads_no_plugin(site: Site) -> None:
    environ = install(site, "import time\nprint('imported', flush=True)\ntime.sleep(60)")
    words = [sys.executable, "-m", "accel_bridge", "run", "--", sys.executable, "-c", "print(1)"]
    began = time.monotonic()
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=50, env={**os.environ, **environ}, check=True
    )
    assert done.stdout == "1\n"
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("place", ["import", "hook", "probe"])
def test_a_plugin_that_hangs_is_named(
    site: Site, place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from accel_bridge.bridge.selection import probe_all

    monkeypatch.setattr(manager, "SLOW", 0.1)
    sleep = "import time\ntime.sleep(0.5)\n"
    source = {
        "import": sleep + backend_source("toy"),
        "hook": f"import time\n{HOOK}time.sleep(0.5)\n    return []",
        "probe": backend_source("toy", probe="import time; time.sleep(0.5)"),
    }[place]
    install(site, source)
    plugins = load_plugins()
    plugins.backends()
    probe_all(plugins)
    said = capsys.readouterr().err
    assert said.count("still ") == 1
    assert "plugin 'deadly'" in said
    assert "ACCEL_BRIDGE_PLUGINS=-deadly leaves it out" in said
    assert manager.SLOW < 10


PROBES = [
    "return 'yes'",
    "return None",
    "return Probe('yes', 'found')",
    "return Probe(True, 3)",
    "return Probe(True, 'found', devices='8')",
    "return Probe(True, 'found', evidence='one line')",
    "return Probe(True, 'found', remedy=7)",
    "raise GeneratorExit",
    "raise SystemExit(0)",
    "import os; os._exit(0)",
]


@pytest.mark.parametrize("probe", PROBES)
def test_a_probe_that_makes_no_sense(site: Site, probe: str) -> None:
    from accel_bridge.bridge.selection import probe_all

    install(site, backend_source("toy", probe=probe))
    (found,) = [one for one in probe_all(load_plugins()) if one.backend.name == "toy"]
    assert not found.probe.available
    assert "its probe raised" in found.probe.reason


ANSWERS = ["return 'npu'", "return 3", "1 / 0", "raise GeneratorExit('mine')"]
METHODS = ("device", "environment", "kernels", "features")


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("method", METHODS)
def test_a_backend_that_makes_no_sense(site: Site, method: str, answer: str) -> None:
    from accel_bridge.device import backend as made

    source = backend_source("toy") + f"\n\ndef answer(self):\n    {answer}\n"
    source += f"ToyBackend.{method} = {'property(answer)' if method == 'features' else 'answer'}\n"
    install(site, source)
    (toy,) = [one.item for one in load_plugins().backends() if one.item.name == "toy"]
    with pytest.raises(PluginError, match=f"backend 'toy' is broken: its {method}"):
        getattr(made, f"{method}_of")(toy)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_the_user_sees_three_parts(method: str, site: Site, forked: Python, tmp_path: Path) -> None:
    source = backend_source("toy") + f"\n\nToyBackend.{method} = lambda self: 1 / 0\n"
    if method == "features":
        source += "ToyBackend.features = property(ToyBackend.features)\n"
    environ = {**install(site, source), "ACCEL_BRIDGE_BACKEND": "toy"}
    script = tmp_path / "script.py"
    script.write_text(
        "import accel_bridge\nhost = accel_bridge.current().host\nhost.kernels, host.features"
    )
    done = forked("-m", "accel_bridge", "run", str(script), **environ)
    assert "Traceback" not in done.stderr
    told = f"accel-bridge: error: The backend 'toy' is broken: its {method} cannot be had."
    assert done.returncode == 2, done.stderr
    assert told in done.stderr
    assert "evidence: deadly_mod.ToyBackend" in done.stderr
