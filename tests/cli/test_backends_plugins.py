"""``accel-bridge backends`` and ``plugins``, as a user runs them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from plugin_site import Python, Site, backend_source

from accel_bridge.apps.cli.main import main


@pytest.fixture
def bridge(python: Python, site: Site) -> Python:
    """Runs accel-bridge with the site's packages installed."""

    def run(*words: str, **environ: str) -> Any:
        return python("-m", "accel_bridge", *words, PYTHONPATH=str(site.directory), **environ)

    return run


def test_backends_as_json(bridge: Python, site: Site) -> None:
    site.install("toy-pkg", {"toy_mod": backend_source("toy", priority=99)}, {"toy": "toy_mod"})
    document = json.loads(bridge("backends", "--json").stdout)
    assert document["chosen"]["backend"] == "toy"
    assert document["chosen"]["how"] == "evidence"
    assert [backend["name"] for backend in document["backends"]] == ["toy", "cuda", "ascend", "cpu"]


def test_a_raising_probe_is_shown_and_the_traceback_on_request(bridge: Python, site: Site) -> None:
    source = backend_source("toy", probe="raise OSError('libtoy.so')")
    site.install("toy-pkg", {"toy_mod": source}, {"toy": "toy_mod"})
    done = bridge("backends")
    assert done.returncode == 0
    assert "its probe raised OSError: libtoy.so" in done.stdout
    assert "Traceback" not in done.stdout
    assert "Traceback" in bridge("backends", ACCEL_BRIDGE_LOG="debug").stdout


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        ({"ACCEL_BRIDGE_BACKEND": "cdua"}, "did you mean 'cuda'?"),
        ({"ACCEL_BRIDGE_BACKEND": "absent"}, "backend 'absent' was asked for"),
        ({"ACCEL_BRIDGE_BACKEND": "broken"}, "plugin 'broken' failed"),
        ({"ACCEL_BRIDGE_BACKEND": "same"}, "plugin 'same' failed"),
        ({"ACCEL_BRIDGE_PLUGINS": "no_such_module"}, "plugin 'no_such_module' failed"),
        ({"ACCEL_BRIDGE_PLUGINS": "-cpu,-cuda,-ascend,-absent"}, "not even the CPU"),
        ({"ACCEL_BRIDGE_LOG": "loud"}, "ACCEL_BRIDGE_LOG='loud' is not understood"),
    ],
)
def test_bad_input_is_an_error_in_three_parts(
    site: Site,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    environ: dict[str, str],
    text: str,
) -> None:
    absent = backend_source("absent", probe="return Probe(False, 'not there')")
    site.install("absent-pkg", {"absent_mod": absent}, {"absent": "absent_mod"})
    site.install("broken-pkg", {"broken_mod": "1 / 0"}, {"broken": "broken_mod"})
    site.install("same-a", {"same_a": "1 / 0"}, {"same": "same_a"})
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert main(["backends"]) == 2
    error = capsys.readouterr().err
    assert "accel-bridge: error: " in error
    assert text in error
    assert "evidence:" in error
    assert "next:" in error
    assert "Traceback (most recent call last):\n" not in error.split("evidence:")[0]


def test_a_failed_plugin_shows_and_stops_nothing(bridge: Python, site: Site) -> None:
    site.install("broken-pkg", {"broken_mod": "import libxyz"}, {"broken": "broken_mod"})
    for command in ("plugins", "backends"):
        done = bridge(command)
        assert done.returncode == 0, done.stderr
        assert "plugin 'broken' (broken-pkg 1.0) failed at import" in done.stdout
    assert "Traceback" in bridge("plugins", ACCEL_BRIDGE_LOG="debug").stdout
    (failed,) = json.loads(bridge("plugins", "--json").stdout)["failed"]
    assert failed["name"] == "broken"
    assert "libxyz" in failed["traceback"]


def test_plugins_lists_hooks_and_origin(bridge: Python, site: Site) -> None:
    site.install("toy-pkg", {"toy_mod": backend_source("toy")}, {"toy": "toy_mod"})
    loaded = {
        plugin["name"]: plugin
        for plugin in json.loads(bridge("plugins", "--json").stdout)["loaded"]
    }
    assert loaded["cpu"]["builtin"]
    assert loaded["toy"]["hooks"] == ["accel_bridge_backends"]
    assert not loaded["toy"]["builtin"]
    lines = [" ".join(line.split()) for line in bridge("plugins").stdout.splitlines()]
    assert "toy toy-pkg 1.0 third party accel_bridge_backends" in lines
