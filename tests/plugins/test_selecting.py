"""Selection: override, evidence, fallback."""

from __future__ import annotations

import pluggy
import pytest
from plugin_site import Site, backend_source

from accel_bridge.bridge.selection import select
from accel_bridge.device.backend import Backend, DeviceSpec, Probe
from accel_bridge.errors import PluginError, SelectionError
from accel_bridge.plugin import hookimpl
from accel_bridge.plugins import hookspecs
from accel_bridge.plugins.candidates import FailedPlugin, Plugin
from accel_bridge.plugins.manager import Plugins, load_plugins
from accel_bridge.process.environment import PluginChoice, Settings


class Fake(Backend):
    """A backend whose probe says what the test wants."""

    title = "fake"

    def __init__(self, name: str, priority: int, answer: Probe | BaseException | None) -> None:
        self.name = name  # type: ignore[misc]
        self.priority = priority  # type: ignore[misc]
        self.answer = answer
        self.probed = 0

    def probe(self) -> Probe:
        self.probed += 1
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer  # type: ignore[return-value]

    def device(self) -> DeviceSpec | None:
        return None


YES = Probe(True, "1 device", ("/dev/thing0",), 1)
NO = Probe(False, "no driver", ("nothing in /dev",), 0, "install the driver")
CPU = Fake("cpu", 0, Probe(True, "a CPU is always there"))


class OneBackend:
    """A plugin that brings one backend."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    @hookimpl
    def accel_bridge_backends(self) -> list[Backend]:
        return [self.backend]


def plugins(*backends: Backend, failed: tuple[FailedPlugin, ...] = ()) -> Plugins:
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    loaded = []
    for backend in backends:
        name = f"{backend.name}-plugin"
        manager.register(OneBackend(backend), name)
        loaded.append(Plugin(name, f"{name} 1.0", "a test", builtin=False))
    return Plugins(manager, tuple(loaded), failed)


BROKEN = FailedPlugin("broken", "broken-pkg 1.0", "import", "ImportError: x", "Traceback ...\nboom")


def test_two_accelerators_go_by_priority_and_it_is_said() -> None:
    gpu, npu = Fake("gpu", 20, YES), Fake("npu", 10, YES)
    selection = select(plugins(npu, CPU, gpu), Settings())
    assert (selection.chosen, selection.how) == (gpu, "evidence")
    assert [probed.backend.name for probed in selection.probes] == ["gpu", "npu", "cpu"]
    assert selection.why.startswith("gpu: 1 device")
    assert "npu is available too" in selection.why
    assert "ACCEL_BRIDGE_BACKEND=npu" in selection.why


def test_the_fallback_says_why_for_each_accelerator_and_failed_plugin() -> None:
    gpu, npu = Fake("gpu", 20, NO), Fake("npu", 10, RuntimeError("libx.so"))
    selection = select(plugins(gpu, npu, CPU, failed=(BROKEN,)), Settings())
    assert (selection.chosen, selection.how) == (CPU, "fallback")
    for reason in ("gpu: no driver", "npu: its probe raised RuntimeError: libx.so", "broken-pkg"):
        assert reason in selection.why


def test_asked_for_but_absent_never_falls_back() -> None:
    with pytest.raises(SelectionError) as caught:
        select(plugins(Fake("gpu", 20, NO), CPU), Settings(backend="gpu"))
    error = caught.value
    assert "ACCEL_BRIDGE_BACKEND=gpu" in error.what
    assert "no driver" in error.what
    assert error.evidence == ("nothing in /dev",)
    assert "install the driver" in error.next
    assert error.exit_code != 0


@pytest.mark.parametrize("level", ["", "debug"])
def test_the_name_of_a_failed_plugin_shows_its_error(
    monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    """And its traceback, when details are wanted."""
    monkeypatch.setenv("ACCEL_BRIDGE_LOG", level)
    with pytest.raises(PluginError) as caught:
        select(plugins(CPU, failed=(BROKEN,)), Settings(backend="broken"))
    assert "failed at import: ImportError: x" in caught.value.evidence[0]
    assert ("boom" in caught.value.evidence) == (level == "debug")
    assert "ACCEL_BRIDGE_PLUGINS=-broken" in caught.value.next


def test_nothing_at_all_is_an_error_with_every_reason() -> None:
    with pytest.raises(SelectionError) as caught:
        select(plugins(Fake("gpu", 20, NO), failed=(BROKEN,)), Settings())
    text = str(caught.value)
    assert "gpu: no driver" in text
    assert "broken-pkg" in text
    with pytest.raises(SelectionError, match="not even the CPU"):
        select(plugins(), Settings())


def test_a_name_that_two_plugins_claim_is_an_error_until_one_is_left_out(site: Site) -> None:
    site.install("a-pkg", {"a_mod": backend_source("same")}, {"first": "a_mod"})
    site.install("b-pkg", {"b_mod": backend_source("same")}, {"second": "b_mod"})
    with pytest.raises(PluginError) as caught:
        select(load_plugins(), Settings(backend="same"))
    assert "a-pkg" in str(caught.value)
    assert "b-pkg" in str(caught.value)
    assert "ACCEL_BRIDGE_PLUGINS=-b-pkg" in caught.value.next
    fixed = load_plugins(PluginChoice(excluded=("b-pkg",)))
    assert select(fixed, Settings(backend="same")).chosen.name == "same"
