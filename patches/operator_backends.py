"""Entries in Megatron's tables of operator backends: ``--op-backend layer_norm=accel_bridge``.

Upstream's open changes #6689 and #6690 give each family of operations (``megatron.core.ops.norm``
and others) a table of backends. Ours are made from kernel contracts: an entry exists where the
active backend has the family's kernels, and says of itself what these are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from accel_bridge.patches._factory import megatron_patch
from accel_bridge.patching import Kind, PatchContext
from accel_bridge.patching.host import Host

if TYPE_CHECKING:
    from accel_bridge.kernels import Kernel

#: The word after ``OPERATION=``.
NAME: Final = "accel_bridge"

Slot = Callable[[PatchContext], Callable[..., Any]]


@dataclass(frozen=True, slots=True)
class Family:
    """One of upstream's families.

    :param parent: upstream's backend whose slots ours has: its class name in the family's
        ``backends`` module. For Transformer Engine, the classes above accel_bridge's extension.
    :param kernels: names of the contracts that it computes with.
    :param slots: methods that are ours -> what makes the function that returns the target.
    :param requires: the package without which it cannot be built.
    """

    parent: str
    kernels: tuple[str, ...]
    slots: tuple[tuple[str, Slot], ...] = ()
    requires: str | None = "transformer_engine"


def _core_attention(context: PatchContext) -> Callable[..., Any]:
    def core_attention(self: Any) -> type:
        """Attention that writes no scores, with the masks of the local spec."""
        from accel_bridge.patches.modules.attention import DotProductAttention

        made: type = DotProductAttention
        return made

    return core_attention


def _cross_entropy(context: PatchContext) -> Callable[..., Any]:
    from accel_bridge.kernels import CROSS_ENTROPY

    kernel = context.host.kernel(CROSS_ENTROPY)

    def loss(logits: Any, labels: Any, tp_group: Any = None) -> Any:
        """Loss [s, b] of logits [s, b, v/p], which are overwritten, and labels [s, b]."""
        from megatron.core.parallel_state import get_tensor_model_parallel_group

        group = get_tensor_model_parallel_group() if tp_group is None else tp_group
        return kernel(logits, labels, group=group)

    return lambda self: loss


#: Upstream's family -> what accel_bridge has for it. `mlp` and `fusions` choose among Megatron's
#: own modules, which ask the other families for their parts.
FAMILIES: Final[dict[str, Family]] = {
    "norm": Family("NormTE", ("layer_norm", "rms_norm")),
    "linear": Family("LinearTE", ("weight_gradient",)),
    "attention": Family("AttentionTE", ("attention",), (("core_attention", _core_attention),)),
    "moe": Family("MoeTE", ("grouped_matmul", "token_permute", "token_unpermute")),
    "loss": Family(
        "LossMegatron",
        ("cross_entropy",),
        (("vocab_parallel_cross_entropy", _cross_entropy),),
        requires=None,
    ),
}


def determinism(family: Family, host: Host) -> str:
    """``deterministic`` where every kernel is one of PyTorch's public operators, else ``unknown``.

    These keep ``torch.use_deterministic_algorithms``, which Megatron's ``--deterministic-mode``
    sets: they give the same bits again or refuse. Nothing is claimed of other kernels, nor where
    NVIDIA's compiled extension computes.
    """
    if family.requires and not host.is_shimmed("transformer_engine_torch"):
        return "unknown"
    used = [kernel for kernel in host.kernels if kernel.contract.name in family.kernels]
    return "deterministic" if all(map(_is_public, used)) else "unknown"


def _is_public(kernel: Kernel[Any, Any]) -> bool:
    return kernel.is_reference or kernel.source.startswith(("torch.nn.", "torch.optim."))


def _table(name: str, family: Family) -> Callable[[PatchContext], object]:
    def make(context: PatchContext) -> dict[str, object]:
        """Upstream's table with one entry more."""
        backends: ModuleType = import_module(f"{context.module.__name__}.backends")
        members: dict[str, object] = {
            "__doc__": f"The active backend's kernels: {', '.join(family.kernels)}.",
            "__module__": __name__,
            "REQUIRES": family.requires,
            "DETERMINISM": determinism(family, context.host),
            **{slot: made(context) for slot, made in family.slots},
        }
        parent = getattr(backends, family.parent)
        made = type(f"{name.title()}AccelBridge", (parent,), members)
        return {**context.original, NAME: made}

    return make


PATCHES = tuple(
    megatron_patch(
        id=f"operators-{name}",
        target=f"megatron.core.ops.{name}:BACKENDS",
        kind=Kind.ATTRIBUTE,
        make=_table(name, family),
        why="no entry for the active accelerator",
        removed_when="upstream reads entries from installed packages",
        loses=f"--op-backend cannot name {NAME} for operations of {name}",
        optional=True,
        requires="megatron-core>=0.20",
        elsewhere="there is no table of operator backends (NVIDIA/Megatron-LM#6689)",
        kernels=family.kernels,
    )
    for name, family in FAMILIES.items()
)
