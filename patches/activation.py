"""Gated activations of the MLP, and bias, dropout and residual after each sub-layer."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal

from accel_bridge.patches._factory import DISTRIBUTION, megatron_patch, unless_faster
from accel_bridge.patching import Kind, Patch, PatchContext


def _make_swiglu(context: PatchContext) -> Callable[..., Any]:
    from accel_bridge.kernels import SWIGLU

    upstream = context.original
    kernel = context.host.kernel(SWIGLU)

    @functools.wraps(upstream)
    def bias_swiglu_impl(input: Any, bias: Any, *args: Any, **kwargs: Any) -> Any:
        """silu(a) * b of the halves of input [.., 2 f] (+ bias [2 f]): [.., f]."""
        # What follows asks for something else: fp8 storage, offloading, clamping.
        if any(args) or any(kwargs.values()):
            return upstream(input, bias, *args, **kwargs)
        return kernel(input, bias)

    return bias_swiglu_impl


def _make_geglu(context: PatchContext) -> Callable[..., Any]:
    from accel_bridge.kernels import GEGLU

    kernel = context.host.kernel(GEGLU)

    def bias_geglu_impl(input: Any, bias: Any) -> Any:
        """gelu(a) * b of the halves of input [.., 2 f] (+ bias [2 f]): [.., f]."""
        return kernel(input, bias, approximate="tanh")

    return bias_geglu_impl


def _make_weighted_swiglu(context: PatchContext) -> Callable[..., Any]:
    from accel_bridge.kernels import GATED_ACTIVATION

    upstream = context.original
    kernel = context.host.kernel(GATED_ACTIVATION)

    @functools.wraps(upstream)
    def weighted_bias_swiglu_impl(
        input: Any, bias: Any, weights: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """silu(a) * b * weights of the halves of input [t, 2 f] and weights [t, 1]: [t, f]."""
        # What follows asks for something else: fp8 storage, clamping.
        if bias is not None or any(args) or any(kwargs.values()):
            return upstream(input, bias, weights, *args, **kwargs)
        return kernel(input, None, weights)

    return weighted_bias_swiglu_impl


def _make_weighted_quick_geglu(context: PatchContext) -> Callable[..., Any]:
    from accel_bridge.kernels import GATED_ACTIVATION

    upstream = context.original
    kernel = context.host.kernel(GATED_ACTIVATION)

    @functools.wraps(upstream)
    def weighted_bias_quick_geglu_impl(
        input: Any,
        bias: Any,
        weights: Any,
        fp8_input_store: bool = False,
        linear_offset: float = 0.0,
        clamp_value: float | None = None,
    ) -> Any:
        """quick_gelu(a) * (b + offset) * weights of the halves of input [t, 2 f]: [t, f]."""
        if bias is not None or fp8_input_store:
            return upstream(input, bias, weights, fp8_input_store, linear_offset, clamp_value)
        return kernel(
            input,
            None,
            weights,
            activation="quick_gelu",
            clamp=clamp_value,
            offset=linear_offset,
        )

    return weighted_bias_quick_geglu_impl


def _make_unfused(context: PatchContext) -> Callable[..., Any]:
    import torch

    from accel_bridge.kernels import GATED_ACTIVATION

    upstream = context.original
    kernel = context.host.kernel(GATED_ACTIVATION)
    quick_gelu = vars(context.module).get("quick_gelu")

    def named(config: Any) -> Literal["silu", "quick_gelu"] | None:
        """The contract's name of the activation of an MLP that Megatron does not fuse."""
        if not config.gated_linear_unit or config.bias_activation_fusion:
            return None
        if getattr(config, "use_te_activation_func", False):
            return None
        if config.activation_func is torch.nn.functional.silu:
            return "silu"
        return "quick_gelu" if config.activation_func is quick_gelu else None

    def forward(
        self: Any, hidden_states: Any, per_token_scale: Any = None, **kwargs: Any
    ) -> tuple[Any, Any]:
        """As upstream for hidden_states [s, b, h], which reads no other names."""
        activation = None if per_token_scale is not None else named(self.config)
        if activation is None:
            return upstream(self, hidden_states, per_token_scale, **kwargs)  # type: ignore[no-any-return]
        rows, bias = self.linear_fc1(hidden_states)
        active = kernel(
            rows,
            bias,
            activation=activation,
            clamp=getattr(self.config, "activation_func_clamp_value", None),
            offset=getattr(self.config, "glu_linear_offset", 0.0),
        )
        return self.linear_fc2(active)  # type: ignore[no-any-return]

    return forward


def _make_gelu(context: PatchContext) -> Callable[..., Any]:
    from accel_bridge.kernels import BIAS_GELU

    kernel = context.host.kernel(BIAS_GELU)

    def bias_gelu_impl(*args: Any, **kwargs: Any) -> Any:
        """gelu(input + bias) of input [.., f] and bias [f]; upstream's takes no names."""
        return kernel(*args, **kwargs)

    return bias_gelu_impl


def _make_bias_dropout_add(context: PatchContext) -> Callable[..., Any]:
    from accel_bridge.kernels import BIAS_DROPOUT_ADD

    kernel = context.host.kernel(BIAS_DROPOUT_ADD)

    def bias_dropout_add_fused_train(x_with_bias: Any, residual: Any, prob: float) -> Any:
        """residual + dropout(x + bias) for x and residual [s, b, h]."""
        x, bias = x_with_bias
        # Megatron's warm-up passes a bias [h] that is expanded to [s, b, h].
        while bias is not None and bias.dim() > 1 and 1 in (bias.shape[0], bias.stride(0) + 1):
            bias = bias[0]
        return kernel(x, bias, residual, dropout=prob, training=True)

    return bias_dropout_add_fused_train


def _patch(
    kernel: str,
    target: str,
    make: Callable[[PatchContext], Any],
    *,
    id: str = "",
    kind: Kind = Kind.REPLACE,
    why: str = "",
    **options: Any,
) -> Patch:
    """:param why: what is to be said in addition."""
    return megatron_patch(
        id=id or kernel.replace("_", "-"),
        target=f"megatron.core.fusions.{target}",
        kind=kind,
        make=make,
        why=f"it is compiled when training begins, and again for each new shape{why}",
        removed_when="the backend's kernel is no faster than what torch.compile makes",
        loses="some seconds at the start, and the host's time per call",
        skip_when=unless_faster(kernel),
        kernels=(kernel,),
        **options,
    )


PATCHES = (
    _patch(
        "swiglu",
        "fused_bias_swiglu:bias_swiglu_impl",
        _make_swiglu,
        kind=Kind.WRAP,
        uses=("input", "bias"),
    ),
    _patch("geglu", "fused_bias_geglu:bias_geglu_impl", _make_geglu),
    _patch(
        "gated_activation",
        "fused_bias_swiglu:weighted_bias_swiglu_impl",
        _make_weighted_swiglu,
        id="weighted-swiglu",
        kind=Kind.WRAP,
        uses=("input", "bias", "weights"),
    ),
    _patch(
        "gated_activation",
        "fused_bias_geglu:weighted_bias_quick_geglu_impl",
        _make_weighted_quick_geglu,
        id="weighted-quick-geglu",
        kind=Kind.WRAP,
        uses=("input", "bias", "weights", "fp8_input_store", "linear_offset", "clamp_value"),
        requires=f"{DISTRIBUTION}>=0.15",
        elsewhere="before 0.15 Megatron has no such function",
    ),
    megatron_patch(
        id="unfused-glu",
        target="megatron.core.transformer.mlp:MLP.forward",
        kind=Kind.WRAP,
        make=_make_unfused,
        why="unfused, it takes up to ten passes over memory",
        removed_when="Megatron fuses every gated activation",
        loses="time: five percent of a step of a dense model with quick GELU",
        skip_when=unless_faster("gated_activation"),
        kernels=("gated_activation",),
        uses=("hidden_states", "per_token_scale"),
    ),
    _patch(
        "bias_gelu",
        "fused_bias_gelu:bias_gelu_impl",
        _make_gelu,
        parameters=("args", "kwargs"),
    ),
    _patch(
        "bias_dropout_add",
        "fused_bias_dropout:bias_dropout_add_fused_train",
        _make_bias_dropout_add,
        why="; it keeps the dropout mask, which the kernel regenerates",
    ),
)
