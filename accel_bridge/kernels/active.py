"""The active backend's kernels: activation sets them, library shims ask for them.

Neither imports the other. Without an active bridge every contract is served by its reference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, ParamSpec, Protocol, TypeVar

from accel_bridge.kernels._contract import Contract, Kernel, Kernels
from accel_bridge.kernels.attention import Layout
from accel_bridge.kernels.comm_gemm_overlap import CommGemmOverlap, chosen_overlap
from accel_bridge.process import log

P = ParamSpec("P")
R = TypeVar("R")


class Features(Protocol):
    """What kernels' callers ask of the device; ``accel_bridge.plugin.Features`` has all of it."""

    @property
    def torch_compile(self) -> bool: ...
    @property
    def cuda_graphs(self) -> bool: ...
    @property
    def tensors_on_host(self) -> bool: ...
    @property
    def triton(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class _NoFeatures:
    torch_compile: bool = False
    cuda_graphs: bool = False
    tensors_on_host: bool = False
    triton: bool = False


class Provider(Protocol):
    """What an active bridge offers to shims; ``accel_bridge.plugin.Host`` has all of it."""

    #: The layout in which the attention kernel is called for [s, b, n, d].
    attention_layout: Layout

    @property
    def kernels(self) -> Kernels: ...

    @property
    def features(self) -> Features: ...

    def say_once(self, line: str) -> None: ...


_NONE: Final = Kernels()
_NO_FEATURES: Final = _NoFeatures()
_provider: Provider | None = None


def provide(provider: Provider | None) -> None:
    """Serve shims from ``provider``; from references alone if it is None."""
    global _provider
    _provider = provider


def kernels() -> Kernels:
    """The active backend's kernels; none without an active bridge."""
    return _NONE if _provider is None else _provider.kernels


def kernel(contract: Contract[P, R]) -> Kernel[P, R]:
    """The active backend's kernel for ``contract``, or the contract's reference."""
    return (_NONE if _provider is None else _provider.kernels).resolve(contract)


def kernel_or_warning(contract: Contract[P, R], warning: str) -> Kernel[P, R]:
    """As :func:`kernel`; where Triton has a device but the contract no kernel, it warns once.

    :param warning: which library's kernels are faster than the reference, and how to get them.
    """
    found = kernel(contract)
    if found.is_reference and features().triton:
        log.fall_back(warning, names_faster=True)
    return found


def attention_layout() -> Layout:
    """The layout in which the user wants the attention kernel to be called for [s, b, n, d]."""
    return "SBHD" if _provider is None else _provider.attention_layout


def comm_gemm_overlap() -> CommGemmOverlap | None:
    """The active backend's GEMMs fused with communication, if the user asked for them."""
    return None if _provider is None else chosen_overlap(_provider)


def features() -> Features:
    """What the active backend's device can do."""
    return _NO_FEATURES if _provider is None else _provider.features


def say_once(line: str) -> None:
    """Show ``line`` once in this process."""
    if _provider is None:
        log.debug(line)
    else:
        _provider.say_once(line)
