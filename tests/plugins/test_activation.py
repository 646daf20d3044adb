"""Activation in threads, from within itself, with a broken torch, with a plugin that was named."""

from __future__ import annotations

from pathlib import Path

import pytest
from plugin_site import Python, Site, backend_source

from accel_bridge.apps.cli.main import main

#: The start of a plugin with one hook; the name of the hook follows.
HOOK = "from accel_bridge.plugin import hookimpl\n@hookimpl\ndef "
ACTIVATE = "import accel_bridge; accel_bridge.activate()"

THREADS = """
import threading
import accel_bridge
found, start = [], threading.Barrier(8)
def work():
    start.wait()
    found.append(accel_bridge.activate())
threads = [threading.Thread(target=work) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(len(found), len(set(map(id, found))), found[0] is accel_bridge.current())
"""


@pytest.mark.slow
def test_threads_get_one_bridge(python: Python) -> None:
    done = python("-c", THREADS, ACCEL_BRIDGE_BACKEND="cpu")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "8 1 True\n"
    assert done.stderr.count("backend cpu: asked for") == 1


@pytest.mark.slow
@pytest.mark.parametrize("place", ["module", "hook"])
def test_a_plugin_that_activates_is_that_plugins_failure(
    forked: Python, site: Site, place: str
) -> None:
    source = HOOK + "accel_bridge_backends():\n    return []\n"
    if place == "module":
        source = f"{ACTIVATE}\n{source}"
    else:
        source = source.replace("return []", f"{ACTIVATE}; return []")
    site.install("eager", {"eager_mod": source}, {"eager": "eager_mod"})
    environ = {"PYTHONPATH": str(site.directory), "ACCEL_BRIDGE_BACKEND": "cpu"}
    done = forked("-c", ACTIVATE, **environ)
    assert done.returncode == 0, done.stderr
    assert "plugin 'eager' (eager 1.0) failed" in done.stderr
    assert "ActivationError: The bridge was activated from within" in done.stderr
    assert done.stderr.count("backend cpu: asked for") == 1


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("raise ImportError('libcudart.so.13: cannot open')", "ImportError: libcudart.so.13"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("x = (", "SyntaxError"),
        ("", "is not PyTorch"),
    ],
)
def test_a_broken_torch_is_named(python: Python, site: Site, source: str, said: str) -> None:
    (site.directory / "torch").mkdir()
    site.install("torch", {"torch/__init__": source})
    environ = {"PYTHONPATH": str(site.directory), "ACCEL_BRIDGE_BACKEND": "cpu"}
    others = [["backends", "--kernels"], ["parity", "kernels"]] if said == "SyntaxError" else []
    for words in (["patches"], *others):
        done = python("-m", "accel_bridge", *words, **environ)
        assert done.returncode == 2
        assert "accel-bridge: error: PyTorch is installed and cannot be imported." in done.stderr
        assert said in done.stderr
        assert "next:     " in done.stderr
        assert "Traceback" not in done.stderr
        assert "plugin" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hook", "named"),
    [
        ("backends()", True),
        ("patches(backend)", True),
        ("versions()", True),
        ("patches(backend)", False),
    ],
)
def test_a_named_plugin_whose_hook_raises_stops(
    forked: Python, site: Site, hook: str, named: bool
) -> None:
    site.install("bad", {"bad_mod": f"{HOOK}accel_bridge_{hook}: 1 / 0"}, {"bad": "bad_mod"})
    environ = {"PYTHONPATH": str(site.directory), "ACCEL_BRIDGE_BACKEND": "cpu"}
    if named:
        environ["ACCEL_BRIDGE_PLUGINS"] = "bad"
    done = forked("-c", ACTIVATE, **environ)
    assert "ZeroDivisionError" in done.stderr
    assert (done.returncode != 0) == named
    assert ("plugin 'bad' failed, and ACCEL_BRIDGE_PLUGINS asks for it" in done.stderr) == named


@pytest.mark.parametrize("words", ["plugins", "backends", "patches --against 0.19"])
def test_a_named_plugin_that_fails_stops_commands(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    probe = backend_source("bad", probe="1 / 0")
    site.install("bad", {"bad_mod": "1 / 0", "probe_mod": probe}, {"bad": "bad_mod"})
    plugins = "probe_mod" if words == "backends" else "bad_mod"
    monkeypatch.setenv("ACCEL_BRIDGE_PLUGINS", plugins)
    assert main(words.split()) == 2
    said = capsys.readouterr().err
    assert "failed, and ACCEL_BRIDGE_PLUGINS asks for it" in said
    assert "Traceback" not in said.partition("evidence:")[0]


def test_a_file_that_hides_torch_is_shown(python: Python, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("x = 1\n")
    (tmp_path / "script.py").write_text("import torch\n")
    script = str(tmp_path / "script.py")
    done = python("-m", "accel_bridge", "run", script, PYTHONPATH=str(tmp_path))
    assert done.returncode != 0
    assert f"`import torch` finds {tmp_path}/torch.py" in done.stderr
    assert f"mv {tmp_path}/torch.py" in done.stderr
    assert "reinstall" not in done.stderr
