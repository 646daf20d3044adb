"""A backend that is rehearsed: another backend's kernels on fake tensors of a device not here."""

from __future__ import annotations

import os
import types
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from accel_bridge.apps.rehearse.devices import MIB, PER_NODE, TYPE, Device
from accel_bridge.device.backend import Backend, DeviceSpec, Features, Memory, Probe

if TYPE_CHECKING:
    from accel_bridge.apps.rehearse.session import Session
    from accel_bridge.kernels import Kernel, Kernels


#: What libraries look up in ``torch.DEVICE_TYPE``.
_STREAMS: Final = ("Event", "Stream", "current_stream", "set_stream", "stream")
#: The number of the current device.
_current: Final = {"index": 0}


@dataclass(frozen=True, slots=True)
class Properties:
    """What ``torch.cuda.get_device_properties`` says of the rehearsed device."""

    name: str
    total_memory: int
    multi_processor_count: int
    major: int
    minor: int
    shared_memory_per_block_optin: int = 232_448
    max_threads_per_multi_processor: int = 2048
    regs_per_multiprocessor: int = 65_536
    L2_cache_size: int = 50 * MIB
    warp_size: int = 32


class RehearsedBackend(Backend):
    """The device of a table, behind ``torch.cuda``, with a real backend's kernels.

    :param kernels_of: whose kernels decide which memory is allocated.
    :param host: the CPU's backend, whose streams, events and generators serve.
    :param device: the row of the table.
    :param session: what is being written down.
    :param limits_of: whose kernels are asked what the device would not take.
    """

    name = "rehearsed"
    priority = 0

    def __init__(
        self,
        kernels_of: Backend,
        host: Backend,
        device: Device,
        session: Session,
        limits_of: Backend | None = None,
    ) -> None:
        self._kernels_of, self._host, self._device = kernels_of, host, device
        self._limits_of = limits_of
        #: For those who know a framework: patches attach themselves to it.
        self.rehearsal = session
        self.title = f"{device.title}, rehearsed"
        self.hidden_modules = host.hidden_modules

    def probe(self) -> Probe:
        return Probe(True, f"rehearsed: {self._device.title}", (self._device.source,))

    def device(self) -> DeviceSpec:
        return self._spec

    @cached_property
    def _spec(self) -> DeviceSpec:
        """Made once: a device type is registered once in a process."""
        spec = self._host.device()
        assert spec is not None
        _register(spec.module)
        module = _module(spec.module, self._device, self.rehearsal)
        return replace(
            spec,
            type=TYPE,
            module=module,
            communication_backend="fake",
            tensor_type=f"torch.{TYPE}",
            indexed=False,  # whatever its number, a process has one device
            parts=(self.rehearsal.install,),
        )

    @property
    def features(self) -> Features:
        if self._kernels_of is self._host:
            return replace(self._host.features, tensors_on_host=False)
        return Features(torch_compile=False, separate_rng=False, triton=True)

    def kernels(self) -> Kernels:
        if self._kernels_of is not self._host and find_spec("triton") is None:
            self.rehearsal.note(
                "Triton is not installed (pip install triton): the memory of the reference "
                "kernels is counted, which is more than the device's"
            )
        kernels = self._kernels_of.kernels()
        if self._limits_of is None:
            return kernels
        os.environ.setdefault("ACCEL_BRIDGE_ASCEND_CHIP", self._device.limits)
        asked = self._limits_of.kernels()
        watched = [self._watched(kernel, asked.get(kernel.contract)) for kernel in kernels]
        return kernels.replaced(*watched)

    def _watched(
        self, kernel: Kernel[Any, Any], asked: Kernel[Any, Any] | None
    ) -> Kernel[Any, Any]:
        """The kernel, which notes each call that the device's own would leave to the reference."""
        if asked is None or asked.is_reference:
            return kernel
        supports, refuses, contract = kernel.supports, asked.supports, kernel.contract
        session, title = self.rehearsal, self._device.title

        from torch._subclasses.fake_tensor import DataDependentOutputException

        def watching(*args: Any, **kwargs: Any) -> str | None:
            try:
                objection = refuses(*args, **kwargs)
            except DataDependentOutputException:
                objection = None
                session.note(f"{contract.name}: whether {title} takes it depends on values")
            if objection is not None:
                session.note(
                    f"{objection}: on {title} the reference of {contract.name} runs, slower and "
                    "with more memory"
                )
            return supports(*args, **kwargs)

        return contract.kernel(kernel.function, kernel.why, watching, kernel.source, kernel.choices)

    def environment(self) -> Mapping[str, str]:
        return {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "TORCHDYNAMO_DISABLE": "1"}

    def memory(self) -> tuple[Memory, ...]:
        return (Memory(self._device.memory, self._device.memory),)


def _register(host: Any) -> None:
    """Give torch's PrivateUse1 our name, with the host's streams, and guards that do nothing."""
    import torch
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend as setup

    absent = types.SimpleNamespace(
        is_available=lambda: False,  # for FakeTensorMode: there is nothing to initialize
        is_initialized=lambda: True,
        current_device=lambda: 0,
        device_count=lambda: 1,
        manual_seed_all=lambda seed: None,
        _is_in_bad_fork=lambda: False,
        **{name: getattr(host, name) for name in _STREAMS},
        get_amp_supported_dtype=lambda: [torch.float16, torch.bfloat16, torch.float32],
    )
    setup(TYPE, absent)


def _module(host: Any, device: Device, session: Session) -> Any:
    """``torch.cuda`` of the rehearsed device: the host's, with this device's size and memory."""
    properties = Properties(device.title, device.memory, device.multiprocessors, *device.capability)
    _current["index"] = int(os.environ.get("LOCAL_RANK", "0"))

    def set_device(index: Any) -> None:
        number = index if isinstance(index, int) else getattr(index, "index", None)
        if isinstance(index, str) and ":" in index:
            number = int(index.rpartition(":")[2])
        if number is not None and number >= 0:
            _current["index"] = number

    own = {
        "is_available": lambda: True,
        "current_device": lambda: _current["index"],
        "set_device": set_device,
        "device_count": lambda: int(os.environ.get("LOCAL_WORLD_SIZE", PER_NODE)),
        "get_device_name": lambda device=None: properties.name,
        "get_device_properties": lambda device=None: properties,
        "get_device_capability": lambda device=None: (properties.major, properties.minor),
        "get_arch_list": lambda: [f"sm_{properties.major}{properties.minor}"],
        "synchronize": lambda device=None: None,
        "mem_get_info": lambda device=None: (
            device_free(session, properties),
            properties.total_memory,
        ),
        "memory_allocated": lambda device=None: session.ledger.now if session.ledger else 0,
        "max_memory_allocated": lambda device=None: session.ledger.peak if session.ledger else 0,
    }
    own["memory_reserved"] = own["memory_allocated"]
    own["max_memory_reserved"] = own["max_memory_allocated"]
    own["reset_peak_memory_stats"] = lambda device=None: None
    own["reset_max_memory_allocated"] = own["reset_peak_memory_stats"]

    class Module(types.ModuleType):
        def __getattr__(self, name: str) -> Any:
            return getattr(host, name)

    module = Module(f"torch.{TYPE}")
    vars(module).update(own)
    return module


def device_free(session: Session, properties: Properties) -> int:
    """Bytes that are free on the device."""
    used = session.ledger.now if session.ledger else 0
    return max(0, properties.total_memory - used)
