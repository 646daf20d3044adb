"""What a backend is: the only interface between the plugin layer and a kind of hardware."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from accel_bridge._device import Device
from accel_bridge._ranks import number

if TYPE_CHECKING:
    from accel_bridge.device._context import Part
    from accel_bridge.kernels import Kernels
    from accel_bridge.kernels.spread_products import SpreadProducts


@dataclass(frozen=True, slots=True)
class Probe:
    """What a backend found when it looked for its hardware.

    :param available: a device is there and can be used.
    :param reason: one sentence, shown to the user.
    :param evidence: what was looked at and what it said, one line each.
    :param devices: number of usable devices; None when it has no meaning (CPU).
    :param remedy: the command or edit that would make it available, where one is known.
    """

    available: bool
    reason: str
    evidence: tuple[str, ...] = ()
    devices: int | None = None
    remedy: str | None = None


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

    def spread_products(self) -> SpreadProducts | None:
        """This backend's products fused with communication, if it has any."""
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
