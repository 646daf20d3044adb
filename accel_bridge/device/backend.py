"""What a backend is: the only interface between the plugin layer and a kind of hardware."""

from __future__ import annotations

import os
import reprlib
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, TypeVar

from accel_bridge.device.device import Device
from accel_bridge.errors import BridgeError, PluginError
from accel_bridge.process.log import is_debug
from accel_bridge.process.ranks import number

if TYPE_CHECKING:
    from accel_bridge.device._context import Part
    from accel_bridge.kernels import Kernels
    from accel_bridge.kernels.comm_gemm_overlap import CommGemmOverlap


Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Probe:
    """What a backend found when it looked for its hardware.

    :param available: a device is there and can be used.
    :param reason: one sentence, shown to the user.
    :param evidence: what was looked at and what it said, one line each.
    :param devices: number of usable devices; None when it has no meaning (CPU).
    :param remedy: the command or edit that would make it available, where one is known.
    :raises TypeError: a field is of another type; plugins are not checked by a compiler.
    """

    available: bool
    reason: str
    evidence: tuple[str, ...] = ()
    devices: int | None = None
    remedy: str | None = None

    def __post_init__(self) -> None:
        fits = {
            "available": isinstance(self.available, bool),
            "reason": isinstance(self.reason, str),
            "evidence": _are_texts(self.evidence),
            "devices": self.devices is None or type(self.devices) is int,
            "remedy": isinstance(self.remedy, str | None),
        }
        for name, fit in fits.items():
            if not fit:
                raise TypeError(f"Probe.{name} cannot be {reprlib.repr(getattr(self, name))}")


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of one device, in bytes."""

    free: int
    total: int


@dataclass(frozen=True, slots=True)
class DeviceSpec(Device):
    """A device, with the extra parts that its redirection needs.

    :param parts: see :mod:`accel_bridge.device`, e.g. ``averages``; applied last, in this order.
    """

    parts: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True)
class Features:
    """What a backend can do beyond its kernels; patches check these, never its name.

    :param torch_compile: ``torch.compile`` works for this device.
    :param cuda_graphs: ``torch.cuda.graph`` (or the device's own) captures and replays.
    :param separate_rng: the device has a random generator separate from the host's.
    :param tensors_on_host: device tensors are host tensors (``Tensor.device`` says ``cpu``).
    :param triton: Triton compiles kernels for the device; elsewhere they are interpreted at best.
    """

    torch_compile: bool = False
    cuda_graphs: bool = False
    separate_rng: bool = True
    tensors_on_host: bool = False
    triton: bool = False


def device_of(backend: Backend) -> DeviceSpec | None:
    """``backend.device()``, checked.

    :raises PluginError: it raises, or returns something else.
    """
    return _answer(backend, "device", backend.device, lambda it: isinstance(it, DeviceSpec | None))


def environment_of(backend: Backend) -> Mapping[str, str]:
    """``backend.environment()``, checked.

    :raises PluginError: it raises, or returns something else.
    """

    def fits(it: object) -> bool:
        return isinstance(it, Mapping) and _are_texts(tuple(it)) and _are_texts(tuple(it.values()))

    return _answer(backend, "environment", backend.environment, fits)


def kernels_of(backend: Backend) -> Kernels:
    """``backend.kernels()``, checked.

    :raises PluginError: it raises, or returns something else.
    """
    from accel_bridge.kernels import Kernels

    return _answer(backend, "kernels", backend.kernels, lambda it: isinstance(it, Kernels))


def features_of(backend: Backend) -> Features:
    """``backend.features``, checked.

    :raises PluginError: it raises, or is something else.
    """
    fits: Callable[[object], bool] = lambda it: isinstance(it, Features)  # noqa: E731
    return _answer(backend, "features", lambda: backend.features, fits)


def _answer(
    backend: Backend, name: str, ask: Callable[[], Answer], fits: Callable[[object], bool]
) -> Answer:
    try:
        found = ask()
        if fits(found):
            return found
        wrong = f"it gave {reprlib.repr(found)}, which docs/api.md does not name"
    except (BridgeError, KeyboardInterrupt):
        raise
    except BaseException as error:  # whatever a vendor's package raises
        wrong = " ".join("".join(traceback.format_exception_only(error)).split())
        if is_debug():
            wrong = "".join(traceback.format_exception(error))
    where = f"{type(backend).__module__}.{type(backend).__qualname__}.{name}"
    raise PluginError(
        f"The backend {backend.name!r} is broken: its {name} cannot be had.",
        evidence=f"{where}: {wrong}",
        next="fix or uninstall its package (`accel-bridge plugins` names it), or set "
        "ACCEL_BRIDGE_BACKEND to another backend",
    )


def _are_texts(found: object) -> bool:
    return isinstance(found, tuple | list) and all(isinstance(one, str) for one in found)


class Backend(ABC):
    """One kind of hardware.

    A backend knows its device and kernels but not Megatron. ``probe`` must neither import
    torch nor create a device context, so that it is safe before ``fork``; the other methods are
    called only for the backend that was selected.
    """

    #: Short name, as in ``ACCEL_BRIDGE_BACKEND``.
    name: ClassVar[str]
    #: Name shown to people.
    title: str
    #: Modules that cannot work on this device; an installed one is hidden from imports.
    hidden_modules: tuple[str, ...] = ()
    #: Other projects' adaptors that can take this device over, best first.
    adaptors: ClassVar[tuple[str, ...]] = ()
    #: What ``accel-bridge first-run`` tries on this hardware alone: (name, seconds, words of
    #: accel-bridge); a file that it leaves goes into the report.
    trials: ClassVar[tuple[tuple[str, float, tuple[str, ...]], ...]] = ()
    #: Among several available backends the one with the highest priority is chosen. CPU is 0;
    #: a backend above 0 has a device of its own, and its probe must find it.
    priority: ClassVar[int]

    @abstractmethod
    def probe(self) -> Probe:
        """Look for the hardware; never raises for a missing or broken library."""

    @abstractmethod
    def device(self) -> DeviceSpec | None:
        """The device to redirect ``torch.cuda`` to; None when torch.cuda is the device."""

    @property
    def features(self) -> Features:
        """What the device can do."""
        return Features()

    def kernels(self) -> Kernels:
        """This backend's kernels; see :class:`accel_bridge.kernels.Kernels`."""
        from accel_bridge.kernels import Kernels

        return Kernels()

    def comm_gemm_overlap(self) -> CommGemmOverlap | None:
        """This backend's GEMMs fused with communication, if it has any."""
        return None

    def environment(self) -> Mapping[str, str]:
        """Environment variables that must be set before torch runs, unless the user set them."""
        return {}

    def versions(self) -> Mapping[str, str]:
        """Versions of driver, toolkit and libraries, for ``accel-bridge env``; never raises."""
        return {}

    def explain(self, environ: Mapping[str, str]) -> Mapping[str, str]:
        """Of its software's variables that are set: what their values do, or why they are wrong.

        For ``accel-bridge env``; never raises.
        """
        return {}

    def memory(self) -> tuple[Memory, ...]:
        """Memory of each device that a process may use, without a device context; never raises.

        Empty where it cannot be known.
        """
        return ()

    def watch(self) -> Callable[[], float | None] | None:
        """Measure, without waiting, which share of the time the current device computes.

        :returns: a function that gives the share, 0 to 1, or None if it could not be measured;
            None for a backend that cannot measure it. Never raises.
        """
        return None


def local_world_size(environ: Mapping[str, str] = os.environ) -> int:
    """Processes that torchrun started on this machine (1 without torchrun).

    :raises EnvironmentVariableError: its variable holds no count.
    """
    return number("LOCAL_WORLD_SIZE", environ) if "LOCAL_WORLD_SIZE" in environ else 1


@dataclass(frozen=True, slots=True)
class ProbedBackend:
    """A backend with its probe's result, and the traceback if the probe raised."""

    backend: Backend
    plugin: str
    probe: Probe
    traceback: str | None = field(default=None)
