"""The shims of Apex and its extensions, against plain formulas."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from ops_support import alike
from torch.nn import functional

from accel_bridge.libraries import LIBRARIES

SHIMS = [name for name, library in LIBRARIES.items() if library.distribution == "apex"]


@pytest.fixture(autouse=True)
def apex(shims: Any) -> Any:
    """``apex`` and its extensions, without Transformer Engine."""
    return shims


def test_nothing_here_needs_transformer_engine(apex: Any) -> None:
    import amp_C
    import fused_weight_gradient_mlp_cuda

    assert amp_C.multi_tensor_l2norm
    assert fused_weight_gradient_mlp_cuda.wgrad_gemm_accum_fp32
    for name in ("optimizers", "normalization", "multi_tensor_apply", "parallel", "transformer"):
        assert getattr(apex, name)
    assert not [name for name in sys.modules if name.startswith("transformer_engine")]


def test_adam_of_half_precision_with_main_parameters(apex: Any) -> None:
    params = [torch.nn.Parameter(torch.randn(50).bfloat16())]
    expected = params[0].detach().double()
    fused = apex.optimizers.FusedAdam(params, 0.01, capturable=True, master_weights=True)
    for _ in range(3):
        params[0].grad = torch.ones_like(params[0])
        fused.step()
        # Gradients of 1 make steps of lr.
        expected -= 0.01
    assert torch.allclose(fused.param_groups_master[0]["params"][0].double(), expected, atol=1e-6)
    assert torch.equal(params[0].detach(), fused.param_groups_master[0]["params"][0].bfloat16())
    with pytest.raises(RuntimeError, match="capturable"):
        apex.optimizers.FusedAdam(params, master_weights=True)


def test_lists_of_tensors(apex: Any) -> None:
    import amp_C

    apply = apex.multi_tensor_apply.multi_tensor_applier
    x, y = [torch.randn(10), torch.randn(3)], [torch.randn(10), torch.randn(3)]
    out = [torch.empty(10, dtype=torch.bfloat16), torch.empty(3)]
    flag = torch.zeros(1, dtype=torch.int32)
    apply(amp_C.multi_tensor_axpby, flag, [x, y, out], 2.0, -0.5, -1)
    for a, b, c in zip(x, y, out, strict=True):
        assert torch.equal(c, (2 * a - 0.5 * b).to(c.dtype))
    assert not flag.item()
    y[1][0] = float("nan")
    apply(amp_C.multi_tensor_axpby, flag, [x, y, out], 1.0, 1.0, 0)
    assert not flag.item()
    apply(amp_C.multi_tensor_axpby, flag, [x, y, out], 1.0, 1.0, 1)
    assert flag.item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("wide", [torch.float32, torch.bfloat16])
def test_weight_gradient_is_never_rounded_to_half(dtype: torch.dtype, wide: torch.dtype) -> None:
    import fused_weight_gradient_mlp_cuda as extension

    x, gradient = torch.randn(64, 5).to(dtype), torch.randn(64, 7).to(dtype)
    main_grad = torch.ones(7, 5, dtype=wide)
    exact = 1 + gradient.double().t() @ x.double()
    if wide is torch.float32:
        extension.wgrad_gemm_accum_fp32(x, gradient, main_grad)
        assert torch.allclose(main_grad.double(), exact, rtol=1e-5, atol=1e-5)
        rounded = torch.ones(7, 5) + (gradient.bfloat16().t() @ x.bfloat16()).float()
        assert not torch.allclose(rounded.double(), exact, rtol=1e-5, atol=1e-5)
    else:
        extension.wgrad_gemm_accum_fp16(x, gradient, main_grad)
        assert torch.allclose(main_grad.double(), exact, rtol=0.02, atol=0.2)


@pytest.mark.parametrize("kind", ["plain", "masked", "causal"])
@pytest.mark.parametrize("scale", [1.0, 0.3])
@pytest.mark.parametrize("injected", [0.0, 0.01])
def test_softmax_and_its_gradient(kind: str, scale: float, injected: float) -> None:
    import scaled_masked_softmax_cuda
    import scaled_softmax_cuda
    import scaled_upper_triang_masked_softmax_cuda

    torch.manual_seed(0)
    scores = torch.randn(2, 3, 8, 8)
    factor = torch.tensor([scale])[0]
    hidden = torch.zeros(2, 1, 8, 8, dtype=torch.bool)
    if kind == "masked":
        hidden = torch.rand(2, 1, 8, 8) < 0.4
        hidden[0, 0, 3] = True
        weights = scaled_masked_softmax_cuda.forward(scores, hidden, factor)
        backward = scaled_masked_softmax_cuda.backward
        assert not weights[0, :, 3].any()
        assert scaled_masked_softmax_cuda.get_batch_per_block(8, 8, 2, 3) == 1
    elif kind == "causal":
        hidden = torch.ones(8, 8, dtype=torch.bool).triu(1).expand(2, 1, 8, 8)
        extension = scaled_upper_triang_masked_softmax_cuda
        weights = extension.forward(scores.view(6, 8, 8), factor).view(2, 3, 8, 8)
        backward = extension.backward
    else:
        weights = scaled_softmax_cuda.forward(scores, factor)
        backward = scaled_softmax_cuda.backward
    exact = scores.double().requires_grad_()
    shown = (exact * (scale + injected)).masked_fill(hidden, float("-inf")).softmax(-1)
    expected = torch.where(hidden.all(-1, keepdim=True), 0.0, shown)
    assert torch.allclose(weights.double(), expected, atol=1e-6) is not bool(injected)
    gradient = torch.randn_like(scores)
    visible = gradient.masked_fill(hidden.all(-1, keepdim=True), 0.0)
    (slope,) = torch.autograd.grad(expected.nan_to_num(), exact, visible.double())
    ours = backward(gradient.clone(), weights, factor)
    assert torch.allclose(ours.double(), slope.nan_to_num(), atol=1e-6) is not bool(injected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16])
def test_norms_have_the_weights_dtype(apex: Any, dtype: torch.dtype, weights: torch.dtype) -> None:
    from apex.contrib.layer_norm.layer_norm import FastLayerNormFN
    from apex.normalization import FusedRMSNorm, MixedFusedLayerNorm
    from apex.normalization.fused_layer_norm import FusedLayerNormAffineFunction

    x = torch.randn(4, 3, 16).to(dtype).requires_grad_()
    gamma, beta = torch.randn(16).to(weights), torch.randn(16).to(weights)
    expected = functional.layer_norm(
        x.detach().double(), (16,), gamma.double(), beta.double(), 1e-5
    )
    tolerance = (
        {"rtol": 1e-5, "atol": 1e-5} if weights == torch.float32 == dtype else {"atol": 0.05}
    )
    module = MixedFusedLayerNorm(16).to(weights)
    module.load_state_dict({"weight": gamma, "bias": beta})
    for output in (
        FusedLayerNormAffineFunction.apply(x, gamma, beta, torch.Size((16,)), 1e-5, False),
        FastLayerNormFN.apply(x, gamma, beta, 1e-5),
        module(x),
    ):
        assert output.dtype == weights
        assert torch.allclose(output.double(), expected, **tolerance)
        assert not torch.allclose(output.double(), expected * 1.1, **tolerance)
        output.sum().backward()
    assert x.grad is not None
    norm = FusedRMSNorm((3, 16), eps=1e-6).to(weights)
    wanted = functional.rms_norm(x.detach().double(), (3, 16), None, 1e-6)
    assert torch.allclose(norm(x).double(), wanted, **tolerance)
    plain = FusedRMSNorm(16, elementwise_affine=False)(x)
    assert plain.dtype == dtype


def test_megatron_asks_for_memory_efficient_by_name() -> None:
    import inspect

    from apex.contrib.layer_norm.layer_norm import FastLayerNormFN
    from apex.normalization.fused_layer_norm import FusedLayerNormAffineFunction

    for function in (FastLayerNormFN, FusedLayerNormAffineFunction):
        assert inspect.getfullargspec(function.forward).args[-1] == "memory_efficient"


@pytest.mark.parametrize("efficient", [False, True])
@pytest.mark.parametrize("rms", [False, True])
def test_norms_forward_and_backward_apart(efficient: bool, rms: bool) -> None:
    import fused_layer_norm_cuda as extension

    torch.manual_seed(1)
    x = torch.randn(5, 8, dtype=torch.float32)
    gamma, beta, dout = torch.rand(8) + 0.5, torch.randn(8), torch.randn(5, 8)
    inputs = [x.double().requires_grad_(), gamma.double().requires_grad_()]
    if rms:
        output, inverse = extension.rms_forward_affine(x, (8,), gamma, 1e-5)
        expected = functional.rms_norm(inputs[0], (8,), inputs[1], 1e-5)
        saved = output if efficient else x
        found = extension.rms_backward_affine(dout, inverse, saved, (8,), gamma, 1e-5, efficient)
    else:
        inputs.append(beta.double().requires_grad_())
        output, mean, inverse = extension.forward_affine(x, (8,), gamma, beta, 1e-5)
        expected = functional.layer_norm(inputs[0], (8,), inputs[1], inputs[2], 1e-5)
        saved, kept = (output, None) if efficient else (x, mean)
        found = extension.backward_affine(
            dout, kept, inverse, saved, (8,), gamma, beta, 1e-5, efficient
        )
    assert torch.allclose(output.double(), expected, atol=1e-5)
    wanted = torch.autograd.grad(expected, inputs, dout.double())
    for one, other in zip(found, wanted, strict=True):
        assert torch.allclose(one.double(), other, atol=1e-5)
        assert not torch.allclose(one.double(), other * 1.01, atol=1e-5)


def test_rotary_embedding_of_documents_is_that_of_each(apex: Any) -> None:
    from apex.transformer import functional as rope

    torch.manual_seed(2)
    freqs = torch.rand(9, 1, 1, 6)
    angles = torch.cat([freqs[:, 0, :, :3], freqs[:, 0, :, :3]], -1).unsqueeze(1)
    x = torch.randn(9, 2, 4, 8)
    turned = rope.fused_apply_rotary_pos_emb(x, angles)
    rotated = torch.cat([-x[..., 3:6], x[..., :3]], -1)
    expected = torch.cat([x[..., :6] * angles.cos() + rotated * angles.sin(), x[..., 6:]], -1)
    assert torch.allclose(turned, expected, atol=1e-6)
    assert not torch.allclose(turned.flip(0), expected, atol=1e-6)
    laid_out = rope.fused_apply_rotary_pos_emb(x, angles, transpose_output_memory=True)
    assert torch.equal(laid_out, turned)
    assert laid_out.transpose(0, 1).is_contiguous()
    sequences = rope.fused_apply_rotary_pos_emb_thd(
        x[:, 0], torch.tensor([0, 4, 9], dtype=torch.int32), angles
    )
    assert torch.equal(sequences[:4], turned[:4, 0])
    again = rope.fused_apply_rotary_pos_emb(x[4:, :1], angles)
    assert torch.equal(sequences[4:], again[:, 0])


def trained(make: Any, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Parameters after four steps of an optimizer on the same random gradients."""
    torch.manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(size).to(dtype)) for size in ((40, 3), (5,))]
    optimizer = make(params)
    for step in range(4):
        torch.manual_seed(step)
        for param in params:
            param.grad = torch.randn(param.shape).to(dtype)
        optimizer.step()
    return [param.detach() for param in params]


ADAM = {"exp_avg", "exp_avg_sq"}


@pytest.mark.parametrize(
    ("name", "options", "plain", "plain_options", "states"),
    [
        ("FusedAdam", {}, "AdamW", {}, ADAM),
        ("FusedAdam", {"adam_w_mode": False}, "Adam", {}, ADAM),
        ("FusedAdam", {"capturable": True}, "AdamW", {}, ADAM),
        ("FusedAdam", {"capturable": True, "adam_w_mode": False}, "Adam", {}, ADAM),
        ("FusedAdagrad", {}, "Adagrad", {}, {"sum"}),
        ("FusedSGD", {"momentum": 0.9}, "SGD", {"momentum": 0.9}, {"momentum_buffer"}),
    ],
)
@pytest.mark.parametrize("injected", [0.0, 1e-3])
def test_optimizers_are_torchs(
    apex: Any,
    name: str,
    options: dict[str, Any],
    plain: str,
    plain_options: dict[str, Any],
    states: set[str],
    injected: float,
) -> None:
    def make(params: Any) -> Any:
        made.append(getattr(apex.optimizers, name)(params, 0.01, weight_decay=0.1, **options))
        return made[0]

    made: list[Any] = []
    found, kind = trained(make), getattr(torch.optim, plain)
    decay = 0.1 + injected
    expected = trained(lambda params: kind(params, 0.01, weight_decay=decay, **plain_options))
    assert alike(found, expected) is not bool(injected)
    assert {key for state in made[0].state.values() for key in state} == states
    assert int(made[0].param_groups[0].get("step", 4)) == 4


class PlainLamb(torch.optim.Optimizer):
    """LAMB by its paper, in float64, with the real one's clipping."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        options, params = self.defaults, self.param_groups[0]["params"]
        norm = sum(param.grad.double().square().sum() for param in params).sqrt()
        for param in params:
            weight, state = param.detach().double(), self.state[param]
            number = state["step"] = state.get("step", 0) + 1
            grad = param.grad.double() / max(norm / options["clip"], 1.0)
            m = state["m"] = 0.9 * state.get("m", 0.0) + 0.1 * grad
            v = state["v"] = 0.99 * state.get("v", 0.0) + 0.01 * grad.square()
            update = m / (1 - 0.9**number) / ((v / (1 - 0.99**number)).sqrt() + 1e-6)
            update = update + options["decay"] * weight
            rate = 0.01
            if options["decay"] or options["all"]:
                rate *= weight.norm() / update.norm()
            param.data.copy_(weight - rate * update)


@pytest.mark.parametrize(("decay", "everywhere"), [(0.1, False), (0.0, False), (0.0, True)])
@pytest.mark.parametrize("mixed", [False, True])
def test_lamb_is_its_formula(apex: Any, decay: float, everywhere: bool, mixed: bool) -> None:
    kind = apex.optimizers.FusedMixedPrecisionLamb if mixed else apex.optimizers.FusedLAMB
    options: Any = {"betas": (0.9, 0.99), "weight_decay": decay, "use_nvlamb": everywhere}
    found = trained(lambda params: kind(params, 0.01, max_grad_norm=2.0, **options))
    numbers = {"decay": decay, "all": everywhere, "clip": 2.0}
    expected = trained(lambda params: PlainLamb(params, numbers))
    fault = trained(lambda params: PlainLamb(params, {**numbers, "clip": 1e9, "all": True}))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert not alike(found, fault)


def test_lamb_of_half_precision_keeps_and_restores_main_parameters(apex: Any) -> None:
    def make(params: Any) -> Any:
        made.append(kind(params, 0.01, reduced_precision_dtype=torch.bfloat16))
        return made[0]

    made: list[Any] = []
    kind = apex.optimizers.FusedMixedPrecisionLamb
    found = trained(make, torch.bfloat16)
    main = made[0].param_groups_full_precision[0]["params"]
    assert all(torch.equal(one, other.bfloat16()) for one, other in zip(found, main, strict=True))
    assert int(made[0].param_groups[0]["step"]) == 4
    again = kind([torch.nn.Parameter(one) for one in found])
    again.load_state_dict(made[0].state_dict())
    moments = [state["exp_avg"] for state in again.state.values()]
    assert all(moment.dtype is torch.float32 for moment in moments)
    assert torch.equal(moments[0], next(iter(made[0].state.values()))["exp_avg"])
    made[0]._dummy_overflow_buf.zero_()
    made[0].param_groups[0]["params"][0].grad = torch.full((40, 3), float("inf")).bfloat16()
    made[0].step()
    assert torch.equal(made[0].param_groups[0]["params"][0], found[0])


@pytest.mark.parametrize("norm_type", [0, 2])
@pytest.mark.parametrize("inside", [False, True])
def test_novograd_is_its_formula(apex: Any, norm_type: int, inside: bool) -> None:
    class Plain(torch.optim.Optimizer):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for param in self.param_groups[0]["params"]:
                weight, grad, state = (
                    param.detach().double(),
                    param.grad.double(),
                    self.state[param],
                )
                norm = grad.norm(2 if norm_type else torch.inf)
                before, number = state.get("v", norm), state.get("step", 0) + 1
                blend = 0.99 * before**2 + 0.01 * norm**2
                v = blend.sqrt() if norm_type else 0.99 * before + 0.01 * norm
                scale = v / (1 - 0.99**number) ** 0.5 + self.defaults["eps"]
                new = grad / scale + 0.1 * weight if inside else grad
                m = 0.9 * state.get("m", 0.0) + 0.1 * new
                update = m / (1 - 0.9**number)
                if not inside:
                    update = update / scale + 0.1 * weight
                state.update(v=v, m=m, step=number)
                param.data.copy_(weight - 0.01 * update)

    options: Any = {"betas": (0.9, 0.99), "weight_decay": 0.1, "norm_type": norm_type}
    kind = apex.optimizers.FusedNovoGrad
    found = trained(lambda params: kind(params, 0.01, reg_inside_moment=inside, **options))
    expected = trained(lambda params: Plain(params, {"eps": 1e-8}))
    fault = trained(lambda params: Plain(params, {"eps": 10.0}))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    for one, wrong in zip(found, fault, strict=True):
        assert not torch.allclose(one, wrong, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("activation", ["none", "relu", "sigmoid"])
@pytest.mark.parametrize("bias", [False, True])
def test_mlp_is_linear_layers(activation: str, bias: bool) -> None:
    from apex.mlp import MLP

    torch.manual_seed(3)
    mlp, x = MLP([6, 8, 4], bias, activation), torch.randn(5, 6, requires_grad=True)
    acts = {"none": lambda y: y, "relu": torch.relu, "sigmoid": torch.sigmoid}
    hidden = x
    for number, weight in enumerate(mlp.weights):
        shift = mlp.biases[number] if bias else None
        hidden = before = functional.linear(hidden, weight, shift)
        hidden = acts[activation](hidden)
    found = mlp(x)
    torch.testing.assert_close(found, hidden)
    assert activation == "none" or not torch.allclose(found, before)
    with torch.autocast("cpu", torch.bfloat16):
        assert mlp(x).dtype is torch.bfloat16
    names = [name for name, _ in mlp.named_parameters()]
    assert sorted(names) == sorted(
        f"{kind}_{i}" for kind in ("weight", "bias")[: 1 + bias] for i in (0, 1)
    )


def test_cross_entropy_pads_with_zero_and_refuses_what_apex_does() -> None:
    from apex.contrib.xentropy.softmax_xentropy import SoftmaxCrossEntropyLoss

    logits, labels = torch.randn(3, 5), torch.tensor([0, 1, -100])
    assert SoftmaxCrossEntropyLoss.apply(logits, labels)[0] == 0
    losses = SoftmaxCrossEntropyLoss.apply(logits, labels, 0.0, -100)
    assert (losses == 0).tolist() == [False, False, True]
    for wrong in ((logits[None], labels[None]), (logits, labels.int()), (logits, labels[:2])):
        with pytest.raises(RuntimeError, match="rows, v"):
            SoftmaxCrossEntropyLoss.apply(*wrong)
    with pytest.raises(RuntimeError, match="half_to_float"):
        SoftmaxCrossEntropyLoss.apply(logits, labels, 0.0, 0, True)


def test_microbatches_of_older_frameworks() -> None:
    from apex.transformer import enums, pipeline_parallel
    from apex.transformer.log_util import set_logging_level

    utils = pipeline_parallel.utils
    set_logging_level("WARNING")
    assert enums.AttnMaskType.causal.value == 2
    with pytest.raises(AssertionError, match="not initialized"):
        utils.get_num_microbatches()
    with pytest.raises(AssertionError, match="multiple"):
        utils.setup_microbatch_calculator(0, None, 7, 2, 2)
    utils._reconfigure_microbatch_calculator(0, [4, 4, 80], 12, 2, 2)
    sizes = []
    for consumed in (0, 40, 79, 81):
        utils.update_num_microbatches(consumed)
        sizes.append((utils.get_current_global_batch_size(), utils.get_num_microbatches()))
    assert sizes == [(4, 1), (8, 2), (8, 2), (12, 3)]
    with pytest.raises(AssertionError, match="already"):
        utils.setup_microbatch_calculator(0, None, 8, 2, 2)
