"""The table of contracts, and the choice of a kernel for one."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from accel_bridge.kernels._contract import Contract, Kernel
from accel_bridge.kernels.adamw import ADAMW
from accel_bridge.kernels.attention import ATTENTION
from accel_bridge.kernels.bias_dropout_add import BIAS_DROPOUT_ADD
from accel_bridge.kernels.bias_gelu import BIAS_GELU
from accel_bridge.kernels.cross_entropy import CROSS_ENTROPY
from accel_bridge.kernels.embedding_gradient import EMBEDDING_GRADIENT
from accel_bridge.kernels.gated import GEGLU, SWIGLU
from accel_bridge.kernels.grouped_matmul import GROUPED_MATMUL
from accel_bridge.kernels.masked_softmax import SCALED_MASKED_SOFTMAX
from accel_bridge.kernels.norms import LAYER_NORM, RMS_NORM
from accel_bridge.kernels.rotary import ROTARY
from accel_bridge.kernels.token_permute import TOKEN_PERMUTE, TOKEN_UNPERMUTE
from accel_bridge.kernels.weight_gradient import WEIGHT_GRADIENT

if TYPE_CHECKING:
    from accel_bridge._backend import Backend

_ALL: Final = (
    ATTENTION,
    RMS_NORM,
    LAYER_NORM,
    ROTARY,
    SWIGLU,
    GEGLU,
    BIAS_GELU,
    BIAS_DROPOUT_ADD,
    SCALED_MASKED_SOFTMAX,
    CROSS_ENTROPY,
    ADAMW,
    WEIGHT_GRADIENT,
    EMBEDDING_GRADIENT,
    GROUPED_MATMUL,
    TOKEN_PERMUTE,
    TOKEN_UNPERMUTE,
)

#: Every contract by its name.
CONTRACTS: Final[Mapping[str, Contract]] = MappingProxyType({c.name: c for c in _ALL})


def reference_kernel(name: str, why: str) -> Kernel:
    """The reference of contract ``name`` as a kernel.

    :param why: why nothing faster is used; shown after the word ``reference``.
    :raises KeyError: no contract has that name.
    """
    return Kernel(
        contract=name,
        function=CONTRACTS[name].reference,
        why=f"reference: {why}",
        source="accel_bridge.kernels",
    )


def resolve(name: str, backend: Backend) -> Kernel:
    """The backend's kernel for contract ``name``, or the contract's reference.

    A caller that only wants to be faster than Megatron's own code asks ``is_reference`` and then
    leaves that code alone, giving ``why`` as its reason; a caller that needs the function where
    Megatron has none uses the reference.

    :raises KeyError: no contract has that name.
    """
    contract = CONTRACTS[name]
    kernel = backend.kernels().get(name)
    if kernel is None:
        return reference_kernel(contract.name, f"backend {backend.name} has no kernel for {name}")
    return kernel
