"""``--transformer-impl transformer_engine``, Megatron's default, without Transformer Engine.

Megatron gets its TE modules from ``TESpecProvider`` and from names that several modules import;
without TE those names are None. Each name gets a class that stands in for it. ``HAVE_TE`` stays
False wherever it gates other features: nothing is claimed that does not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from accel_bridge._host import Host
from accel_bridge.patches._conditions import beside
from accel_bridge.patches._factory import megatron_patch
from accel_bridge.patching import Kind, Patch, PatchContext

if TYPE_CHECKING:
    import torch

# The imports below are inside functions: a patch is made while Megatron is being imported, and must
# not pull in more of it than the patched module has loaded itself.


def _norm(host: Host) -> type:
    from accel_bridge.patches.modules.norm import build_norm

    kernels = host.kernels

    class SpecNorm:
        """Builds the norm that the configuration names; interface of ``TENorm``."""

        def __new__(  # type: ignore[misc]
            cls, config: Any, hidden_size: int, eps: float = 1e-5, has_residual: bool = False
        ) -> torch.nn.Module:
            return build_norm(config, hidden_size, eps, kernels)

    return SpecNorm


def _layer_norm_linear(host: Host) -> type:
    from accel_bridge.patches.modules.linear import LayerNormColumnParallelLinear

    kernels = host.kernels

    class LayerNormLinear(LayerNormColumnParallelLinear):
        """Norm and column-parallel linear on the active backend's kernels."""

        def __init__(self, input_size: int, output_size: int, **kwargs: Any) -> None:
            super().__init__(input_size, output_size, kernels=kernels, **kwargs)

    return LayerNormLinear


def _duplicated_linear(host: Host) -> type:
    from accel_bridge.patches.modules.linear import DuplicatedLinear

    return DuplicatedLinear


def _column_parallel_linear(host: Host) -> type:
    from megatron.core.tensor_parallel.layers import ColumnParallelLinear

    return ColumnParallelLinear  # type: ignore[no-any-return]


def _row_parallel_linear(host: Host) -> type:
    from megatron.core.tensor_parallel.layers import RowParallelLinear

    return RowParallelLinear  # type: ignore[no-any-return]


def _core_attention(host: Host) -> type:
    from megatron.core.transformer.dot_product_attention import DotProductAttention

    return DotProductAttention  # type: ignore[no-any-return]


def _spec_provider(host: Host) -> type:
    from accel_bridge.patches.modules.spec_provider import make_spec_provider

    return make_spec_provider(lambda name: spec_class(name, host), host.kernels)


#: Transformer Engine class of Megatron -> its stand-in.
STAND_INS: Mapping[str, Callable[[Host], type]] = {
    "TEColumnParallelLinear": _column_parallel_linear,
    "TEDotProductAttention": _core_attention,
    "TELayerNormColumnParallelLinear": _layer_norm_linear,
    "TELinear": _duplicated_linear,
    "TENorm": _norm,
    "TERowParallelLinear": _row_parallel_linear,
    "TESpecProvider": _spec_provider,
}

#: Module under megatron.core -> names in it that are None without Transformer Engine.
NAMES: Mapping[str, tuple[str, ...]] = {
    "models.T5.t5_spec": (
        "TEColumnParallelLinear",
        "TEDotProductAttention",
        "TELayerNormColumnParallelLinear",
        "TENorm",
        "TERowParallelLinear",
    ),
    "models.bert.bert_layer_specs": (
        "TEDotProductAttention",
        "TELayerNormColumnParallelLinear",
        "TERowParallelLinear",
    ),
    "models.gpt.gpt_layer_specs": ("TENorm", "TESpecProvider"),
    "transformer.attention": ("TENorm",),
    "transformer.multi_latent_attention": (
        "TEColumnParallelLinear",
        "TELayerNormColumnParallelLinear",
        "TELinear",
    ),
    "transformer.multi_token_prediction": ("TESpecProvider",),
}


def spec_class(name: str, host: Host) -> type:
    """The stand-in for Transformer Engine's class ``name``: one object for every place, because
    Megatron compares these classes by identity."""
    return host.once(f"spec class {name}", lambda: STAND_INS[name](host))


_installed = beside("transformer_engine", uses="its classes")


def _stand_in(module: str, name: str) -> Patch:
    return megatron_patch(
        id=f"te-spec/{module.rpartition('.')[2]}.{name}",
        target=f"megatron.core.{module}:{name}",
        kind=Kind.ATTRIBUTE,
        make=lambda context: spec_class(name, context.host),
        why="the name is None without Transformer Engine, and its spec is Megatron's default",
        removed_when="upstream's default --transformer-impl works without Transformer Engine",
        loses="--transformer-impl transformer_engine (the default) fails for some models",
        skip_when=_installed,
        kernels=("attention", "layer_norm", "rms_norm"),
    )


def _provider(context: PatchContext) -> type:
    return spec_class("TESpecProvider", context.host)


PATCHES = (
    megatron_patch(
        id="te-spec/provider",
        target="megatron.core.extensions.transformer_engine_spec_provider:TESpecProvider",
        kind=Kind.ATTRIBUTE,
        make=_provider,
        why="it returns classes that raise 'Transformer Engine is not installed'",
        removed_when="upstream's default --transformer-impl works without Transformer Engine",
        loses="--transformer-impl transformer_engine (the default) stops with an ImportError",
        skip_when=_installed,
        kernels=("attention", "layer_norm", "rms_norm"),
    ),
    megatron_patch(
        id="te-spec/bert_layer_specs.HAVE_TE",
        target="megatron.core.models.bert.bert_layer_specs:HAVE_TE",
        kind=Kind.ATTRIBUTE,
        make=lambda context: True,
        why="in this module the flag only gates the spec with the stand-in classes",
        removed_when="upstream's default --transformer-impl works without Transformer Engine",
        loses="BERT's default spec raises an ImportError",
        skip_when=_installed,
    ),
    *(_stand_in(module, name) for module, names in NAMES.items() for name in names),
)
