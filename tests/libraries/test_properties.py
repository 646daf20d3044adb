"""Properties of every shim's functions, on the CPU's kernels.

Memory out of order changes nothing: results, gradients and what is written in place are those of
contiguous tensors, whose results are contiguous as the real libraries' are (callers take views).
Autocast casts where the real one casts, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pkgutil import resolve_name
from typing import Any

import pytest
import torch

import accel_bridge

Arguments = tuple[Any, ...]
Layout = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture(scope="module", autouse=True)
def bridge() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ACCEL_BRIDGE_LIBRARIES", "all")
        accel_bridge.activate("cpu", after_import=True)
        yield
        accel_bridge.deactivate()


def values(*sizes: int) -> torch.Tensor:
    return torch.randn(sizes)


def small(*sizes: int) -> torch.Tensor:
    """Values in (0, 1): decays, steps, scales."""
    return torch.rand(sizes) * 0.8 + 0.1


def ends(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


def heads(*lengths: int, batch: int = 2) -> Arguments:
    return tuple(values(batch, length, 4, 8) for length in lengths)


#: module:function -> its arguments.
CASES: dict[str, Callable[[], Arguments]] = {
    "flash_attn:flash_attn_func": lambda: heads(5, 6, 6),
    "flash_attn:flash_attn_kvpacked_func": lambda: (values(2, 5, 4, 8), values(2, 6, 2, 2, 8)),
    "flash_attn:flash_attn_qkvpacked_func": lambda: (values(2, 5, 3, 4, 8), 0.0, None, True),
    "flash_attn:flash_attn_varlen_func": lambda: (
        *(one[0] for one in heads(9, 9, 9)), ends(0, 4, 9), ends(0, 4, 9), 5, 5, 0.0, None, True,
    ),
    "flash_attn:flash_attn_varlen_kvpacked_func": lambda: (
        values(9, 4, 8), values(9, 2, 2, 8), ends(0, 4, 9), ends(0, 4, 9), 5, 5,
    ),
    "flash_attn:flash_attn_varlen_qkvpacked_func": lambda: (values(9, 3, 4, 8), ends(0, 4, 9), 5),
    "flash_attn:flash_attn_with_kvcache": lambda: (
        *heads(1, 6, 6, 1, 1), values(6, 4), values(6, 4), ends(3, 4),
    ),
    "flash_attn.bert_padding:index_first_axis": lambda: (values(4, 3, 2), torch.tensor([2, 0])),
    "flash_attn.bert_padding:pad_input": lambda: (values(3, 4, 2), torch.tensor([0, 2, 5]), 2, 3),
    "flash_attn.layers.rotary:apply_rotary_emb": lambda: (
        values(2, 5, 4, 8), values(6, 3), values(6, 3),
    ),
    "flash_attn.layers.rotary:apply_rotary_emb_torch": lambda: (
        values(2, 5, 4, 8), values(5, 3), values(5, 3), True,
    ),
    "flash_attn.ops.activations:swiglu": lambda: (values(4, 6), values(4, 6)),
    "flash_attn.ops.rms_norm:rms_norm": lambda: (values(4, 3, 6), values(6), 1e-5),
    "flash_attn.ops.triton.cross_entropy:cross_entropy_loss": lambda: (
        values(4, 6), torch.tensor([1, 2, -100, 3]),
    ),
    "flash_attn.ops.triton.layer_norm:layer_norm_fn": lambda: (
        values(4, 6), values(6), values(6), values(4, 6), values(4, 6),
    ),
    "apex.normalization.fused_layer_norm:fused_layer_norm": lambda: (values(4, 3, 6), (3, 6)),
    "apex.normalization.fused_layer_norm:fused_layer_norm_affine": lambda: (
        values(4, 3, 6), values(3, 6), values(3, 6), (3, 6),
    ),
    "apex.normalization.fused_layer_norm:fused_rms_norm_affine": lambda: (
        values(4, 3, 6), values(3, 6), (3, 6),
    ),
    "apex.contrib.layer_norm.layer_norm:FastLayerNormFN.apply": lambda: (
        values(4, 3, 6), values(6), values(6), 1e-5,
    ),
    "apex.contrib.xentropy.softmax_xentropy:SoftmaxCrossEntropyLoss.apply": lambda: (
        values(4, 7),
        torch.tensor([3, 0, 6, 1]),
        0.1,
    ),
    "apex.mlp.mlp:mlp_function": lambda: (1, 1, values(5, 4), values(6, 4), values(6)),
    "apex.transformer.functional:fused_apply_rotary_pos_emb": lambda: (
        values(5, 2, 4, 8), values(5, 1, 1, 6),
    ),
    "apex.transformer.functional:fused_apply_rotary_pos_emb_thd": lambda: (
        values(9, 4, 8), ends(0, 4, 9), values(5, 1, 1, 6),
    ),
    "amp_C:multi_tensor_scale": lambda: (
        9, ends(0), [[values(4, 6)], [values(4, 6)]], 0.5,
    ),
    "amp_C:multi_tensor_axpby": lambda: (
        9, ends(0), [[values(4, 6)] for _ in range(3)], 2.0, 3.0, -1,
    ),
    "amp_C:multi_tensor_l2norm": lambda: (9, ends(0), [[values(4, 6), values(3, 2)]], True),
    "amp_C:multi_tensor_adam": lambda: (
        9, ends(0), [[small(4, 6)] for _ in range(4)], 0.1, 0.9, 0.99, 1e-8, 3, 1, 1, 0.1,
    ),
    "amp_C:multi_tensor_sgd": lambda: (
        9, ends(0), [[values(4, 6)] for _ in range(3)],
        *(0.1, 0.9, 0.0, 0.1, False, False, False, 1.0),
    ),
    "amp_C:multi_tensor_lamb": lambda: (
        9, ends(0), [[small(4, 6)] for _ in range(4)],
        *(0.1, 0.9, 0.99, 1e-6, 3, 1, 0.1, 1, 1, torch.ones(1), 1.0),
    ),
    "amp_C:multi_tensor_adagrad": lambda: (
        9, ends(0), [[small(4, 6)] for _ in range(3)], 0.1, 1e-8, 0, 0.1,
    ),
    "fused_layer_norm_cuda:forward_affine": lambda: (
        values(4, 3, 6), (3, 6), values(3, 6), values(3, 6), 1e-5,
    ),
    "fused_layer_norm_cuda:rms_backward_affine": lambda: (
        values(4, 6), small(4), values(4, 6), (6,), values(6), 1e-5, False,
    ),
    "fused_weight_gradient_mlp_cuda:wgrad_gemm_accum_fp32": lambda: (
        values(5, 4), values(5, 6), values(6, 4),
    ),
    "scaled_softmax_cuda:forward": lambda: (values(2, 3, 4, 4), 0.5),
    "scaled_softmax_cuda:backward": lambda: (values(2, 3, 4, 4), small(2, 3, 4, 4), 0.5),
    "scaled_upper_triang_masked_softmax_cuda:forward": lambda: (values(6, 4, 4), 0.5),
    "mamba_ssm.ops.selective_scan_interface:selective_scan_fn": lambda: (
        values(2, 4, 6), small(2, 4, 6), -small(4, 3), values(2, 3, 6), values(2, 3, 6), values(4),
    ),
    "mamba_ssm.ops.triton.ssd_combined:mamba_chunk_scan_combined": lambda: (
        values(2, 6, 4, 8), small(2, 6, 4), -small(4), values(2, 6, 2, 3), values(2, 6, 2, 3), 4,
        values(4), values(2, 6, 4, 8),
    ),
    "mamba_ssm.ops.triton.selective_state_update:selective_state_update": lambda: (
        values(2, 4, 8, 3), values(2, 4, 8), small(2, 4, 8), -small(4, 8, 3),
        *(values(2, 2, 3), values(2, 2, 3), values(4, 8), values(2, 4, 8)),
    ),
    "mamba_ssm.ops.triton.layernorm_gated:rmsnorm_fn": lambda: (
        values(4, 6), values(6), None, values(4, 6), 1e-5, 3,
    ),
    "causal_conv1d:causal_conv1d_fn": lambda: (values(2, 4, 6), values(4, 3), values(4)),
    "causal_conv1d:causal_conv1d_update": lambda: (
        values(2, 4, 2), values(2, 4, 3), values(4, 3), values(4),
    ),
    "causal_conv1d.causal_conv1d_varlen:causal_conv1d_varlen_states": lambda: (
        values(9, 4), ends(0, 4, 9), 3,
    ),
    "fla.modules.l2norm:l2norm": lambda: (values(4, 6),),
    "fla.modules.conv.causal_conv1d:causal_conv1d": lambda: (values(2, 6, 4), values(4, 3)),
    "fla.modules.fused_norm_gate:rms_norm_gated": lambda: (
        values(4, 6), values(4, 6), values(6), None,
    ),
    "fla.ops.gated_delta_rule:chunk_gated_delta_rule": lambda: (
        values(2, 6, 2, 4), values(2, 6, 2, 4) / 4, values(2, 6, 4, 4), -small(2, 6, 4),
        *(small(2, 6, 4), None, values(2, 4, 4, 4), True),
    ),
    "fla.ops.gated_delta_rule:fused_recurrent_gated_delta_rule": lambda: (
        values(2, 6, 2, 4), values(2, 6, 2, 4) / 4, values(2, 6, 4, 4), -small(2, 6, 4), None, None,
        small(2, 6, 4),
    ),
    "fla.ops.simple_gla:chunk_simple_gla": lambda: (
        values(2, 6, 2, 4), values(2, 6, 2, 4), values(2, 6, 2, 4), -small(2, 6, 2),
    ),
    "fla.ops.simple_gla:fused_recurrent_simple_gla": lambda: (
        values(2, 6, 2, 4), values(2, 6, 2, 4), values(2, 6, 2, 4), -small(2, 6, 2),
    ),
    "fast_hadamard_transform:hadamard_transform": lambda: (values(3, 4, 8),),
    "grouped_gemm.ops:gmm": lambda: (values(8, 4), values(3, 4, 6), torch.tensor([3, 0, 5])),
}  # fmt: skip

#: Those whose real one lays its result out otherwise.
OTHER_LAYOUT = ("causal_conv1d_varlen_states",)
#: Those whose result has no gradient, or whose arguments are written in place.
WITHOUT_GRADIENT = ("amp_C", "_cuda", "with_kvcache", "_update", "varlen_states", "state_update")


def reversed_memory(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, with the first dimension innermost."""
    order = tuple(reversed(range(tensor.dim())))
    return tensor.permute(order).contiguous().permute(order)


def with_gaps(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, between others."""
    wide = torch.full((*tensor.shape[:-1], 2 * tensor.shape[-1]), 7, dtype=tensor.dtype)
    wide[..., ::2] = tensor
    return wide[..., ::2]


def flat(value: Any) -> list[torch.Tensor]:
    """All tensors in nested lists."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [one for part in value for one in flat(part)] if isinstance(value, (list, tuple)) else []


def called(
    function: Callable[..., Any], arguments: Arguments, layout: Layout, gradient: bool
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """(results, then what the arguments hold afterwards and gradients)."""

    def laid(value: Any) -> Any:
        if isinstance(value, list):
            return [laid(one) for one in value]
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value.clone() if isinstance(value, torch.Tensor) else value
        return layout(value.clone()).requires_grad_(gradient)

    given = [laid(one) for one in arguments]
    results = flat(function(*given))
    after = [one.detach() for one in flat(given)]
    if gradient:
        roots = [one for one in results if one.requires_grad]
        leaves = [one for one in flat(given) if one.requires_grad]
        weights = [one.detach().cos() for one in roots]
        found = torch.autograd.grad(roots, leaves, weights, allow_unused=True)
        after += [one for one in found if one is not None]
    return results, after


def check(
    function: Callable[..., Any], arguments: Arguments, gradient: bool, in_order: bool = True
) -> None:
    """:raises AssertionError: it minds how its arguments lie in memory."""
    results, after = called(function, arguments, torch.Tensor.contiguous, gradient)
    assert not in_order or all(one.is_contiguous() for one in results), [
        one.stride() for one in results
    ]
    for layout in (reversed_memory, with_gaps):
        found = called(function, arguments, layout, gradient)
        pairs = zip([*found[0], *found[1]], [*results, *after], strict=True)
        for one, other in pairs:
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("name", CASES)
def test_strides_change_nothing(name: str) -> None:
    torch.manual_seed(0)
    gradient = not any(part in name for part in WITHOUT_GRADIENT)
    in_order = not any(part in name for part in OTHER_LAYOUT)
    check(resolve_name(name), CASES[name](), gradient, in_order)


@pytest.mark.parametrize("kind", ["reads memory", "writes a copy", "returns a view"])
def test_a_function_that_minds_strides_is_found(kind: str) -> None:
    def fault(x: torch.Tensor) -> torch.Tensor:
        if kind == "reads memory":
            return x.as_strided(x.shape, torch.empty(x.shape).stride()).exp()
        if kind == "writes a copy":
            x.reshape(-1).mul_(2)
            return x.exp()
        return x.exp().T

    with pytest.raises(AssertionError):
        check(partial(fault), (values(4, 6),), gradient=False)


#: Those whose real one minds autocast: it casts its arguments, or has a GEMM inside.
CAST = ("apex.normalization", "apex.contrib.layer_norm", "apex.mlp")


def autocast_minds(name: str, function: Callable[..., Any]) -> bool:
    """Whether results or gradients are others where the call was under autocast."""

    def cast(*values: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return function(*values)

    torch.manual_seed(0)
    arguments = CASES[name]()
    gradient = not any(part in name for part in WITHOUT_GRADIENT)
    plain, other = (
        called(one, arguments, torch.Tensor.contiguous, gradient) for one in (function, cast)
    )
    pairs = zip([*plain[0], *plain[1]], [*other[0], *other[1]], strict=True)
    return any(
        one.dtype is not other.dtype or not torch.allclose(one, other, 1e-5, 1e-6, equal_nan=True)
        for one, other in pairs
    )


@pytest.mark.parametrize("name", CASES)
def test_autocast_changes_what_it_does_in_the_real_one(name: str) -> None:
    minds = autocast_minds(name, resolve_name(name))
    assert minds is name.startswith(CAST), "what the real one does is in CAST"
