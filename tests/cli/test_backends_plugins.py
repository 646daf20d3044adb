"""``accel-bridge backends`` and ``plugins``, as a user runs them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from plugin_site import Site, backend_source

from accel_bridge.apps.cli.main import main


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """What a command prints, as a document where it is one."""
    assert main(list(words)) == 0
    text = capsys.readouterr().out
    return json.loads(text) if "--json" in words else text


def test_backends_as_json(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.install("toy-pkg", {"toy_mod": backend_source("toy", priority=99)}, {"toy": "toy_mod"})
    document = printed(capsys, "backends", "--json")
    assert document["chosen"]["backend"] == "toy"
    assert document["chosen"]["how"] == "evidence"
    assert [backend["name"] for backend in document["backends"]] == ["toy", "cuda", "ascend", "cpu"]


@pytest.mark.parametrize(
    ("command", "source", "said"),
    [
        (
            "backends",
            backend_source("toy", probe="raise OSError('libtoy.so')"),
            "its probe raised OSError: libtoy.so",
        ),
        ("plugins", "import libxyz", "plugin 'toy' (toy-pkg 1.0) failed at import"),
    ],
)
def test_a_failure_is_shown_and_the_traceback_on_request(
    site: Site,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    source: str,
    said: str,
) -> None:
    site.install("toy-pkg", {"toy_mod": source}, {"toy": "toy_mod"})
    for one in (command, "backends"):
        text = printed(capsys, one)
        assert said in text
        assert "Traceback" not in text
    if command == "plugins":
        (failed,) = printed(capsys, "plugins", "--json")["failed"]
        assert "libxyz" in failed["traceback"]
    monkeypatch.setenv("ACCEL_BRIDGE_LOG", "debug")
    assert "Traceback" in printed(capsys, command)


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


def test_plugins_lists_hooks_and_origin(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.install("toy-pkg", {"toy_mod": backend_source("toy")}, {"toy": "toy_mod"})
    loaded = {plugin["name"]: plugin for plugin in printed(capsys, "plugins", "--json")["loaded"]}
    assert loaded["cpu"]["builtin"]
    assert loaded["toy"]["hooks"] == ["accel_bridge_backends"]
    assert not loaded["toy"]["builtin"]
    lines = [" ".join(line.split()) for line in printed(capsys, "plugins").splitlines()]
    assert "toy toy-pkg 1.0 third party accel_bridge_backends" in lines
