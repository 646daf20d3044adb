"""Short ways through Transformer Engine's own classes.

They lie above accel_bridge's extension. Above NVIDIA's compiled one, layers and experts take them
too where nothing is quantized; attention stays NVIDIA's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Final

from accel_bridge.patching import Kind, Patch, PatchContext
from accel_bridge.patching.host import Host

_SOURCE: Final = "https://github.com/NVIDIA/TransformerEngine/blob/main"
_FAST: Final = "accel_bridge.libraries.transformer_engine_torch.fast"


def _above_the_extension(host: Host) -> str | None:
    if host.is_shimmed("transformer_engine_torch"):
        return None
    return "Transformer Engine does not run on accel_bridge's extension"


def _served(host: Host) -> str | None:
    if _above_the_extension(host) is None:
        return None
    if not (host.features.triton and host.library("transformer_engine_torch")):
        return "there is no Transformer Engine for this device"
    # Not for whom it is not there: activation is quick.
    from accel_bridge.libraries.transformer_engine_torch import releases

    if releases.release(releases.installed()) < releases.OLDEST:
        return f"Transformer Engine is older than {releases.SERVED}, whose classes are known"
    return None


def _made(module: str, name: str) -> Callable[[PatchContext], object]:
    """A patch's ``make``: the module is imported when its target is."""

    def make(context: PatchContext) -> object:
        return getattr(import_module(f"{_FAST}.{module}"), name)(context.original, context.module)

    return make


def _fast(
    id: str,
    target: str,
    make: tuple[str, str],
    loses: str,
    skip_when: Callable[[Host], str | None] = _served,
) -> Patch:
    file = target.partition(":")[0].replace(".", "/")
    return Patch(
        id=f"te-{id}",
        target=target,
        kind=Kind.WRAP,
        make=_made(*make),
        why="less work for the host",
        upstream=f"{_SOURCE}/{file}.py",
        removed_when="Transformer Engine's own way is as short",
        loses=loses,
        skip_when=skip_when,
    )


_ATTENTION: Final = "transformer_engine.pytorch.attention.dot_product_attention"
_PERMUTATION: Final = "transformer_engine.pytorch.permutation"
_LAYERS: Final = "transformer_engine.pytorch.module"

#: id, target, module and function of the short way, what is lost without it.
_WAYS: Final = (
    *(
        (id, f"{_PERMUTATION}:{target}", ("permutation", make), "time: a tiny layer's takes twice")
        for id, target, make in (
            ("permute", "moe_permute", "permute"),
            ("permute-probs", "moe_permute_with_probs", "permute_with_probs"),
            ("unpermute", "moe_unpermute", "unpermute"),
            ("sort-chunks", "moe_sort_chunks_by_index", "sort_chunks"),
            ("sort-chunks-probs", "moe_sort_chunks_by_index_with_probs", "sort_chunks_with_probs"),
        )
    ),
    (
        "experts-weights",
        f"{_LAYERS}.grouped_linear:GroupedLinear.reset_parameters",
        ("grouped", "reset_parameters"),
        "time: experts of a middle size take a launch for each",
    ),
    (
        "adam",
        "transformer_engine.pytorch.optimizers.fused_adam:FusedAdam.step",
        ("optimizer", "adam_step"),
        "time: about ten microseconds of the host for each parameter in each step",
    ),
    *(
        (id, f"{_LAYERS}.{target}.forward", (module, make), "time: a tiny layer's takes twice")
        for id, target, module, make in (
            ("linear", "linear:Linear", "linear", "linear_forward"),
            (
                *("layernorm-linear", "layernorm_linear:LayerNormLinear"),
                *("linear", "norm_linear_forward"),
            ),
            ("grouped-linear", "grouped_linear:GroupedLinear", "grouped", "grouped_forward"),
            ("rmsnorm", "rmsnorm:RMSNorm", "linear", "rms_norm_forward"),
            ("layernorm", "layernorm:LayerNorm", "linear", "layer_norm_forward"),
        )
    ),
)
PATCHES: Final = (
    _fast(
        "attention",
        f"{_ATTENTION}.dot_product_attention:DotProductAttention.forward",
        ("attention", "attention_forward"),
        "time: attention of a tiny layer takes 5 times as long; memory: attention in float32 keeps "
        "its matrix of scores",
        _above_the_extension,
    ),
    *(_fast(*way) for way in _WAYS),
    *(
        replace(
            # By the package, where both are: the one that pads needs the other.
            _fast(id, f"{_LAYERS}:{name}.forward", ("grouped", make), "time: rows are copied"),
            upstream=f"{_SOURCE}/{_LAYERS.replace('.', '/')}/{name.lower().replace('8', '8_')}.py",
            after=needs,
            needs=needs,
        )
        for id, name, make, needs in (
            ("unpadding", "Fp8Unpadding", "unpadding_forward", ()),
            ("padding", "Fp8Padding", "padding_forward", ("te-unpadding",)),
        )
    ),
)
