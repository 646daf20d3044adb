"""The patches that make Megatron faster: same values, and upstream's own code where they do not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from accel_bridge.backends.cpu.kernels import KERNELS
from accel_bridge.kernels import ADAMW, WEIGHT_GRADIENT, AdamWOptions, Kernel, reference_kernel
from accel_bridge.patches import rotary
from accel_bridge.patches.modules.adamw import KernelAdamW, step_by_kernel
from accel_bridge.patches.modules.linear_function import linear


def trained(kernel: Kernel[Any, Any] | None, steps: int = 4, **options: Any) -> list[torch.Tensor]:
    """Parameters after some steps of AdamW."""
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(size)) for size in (5, 7, 3)]
    groups = [{"params": parameters[:2], "weight_decay": 0.1}, {"params": parameters[2:]}]
    optimizer = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95), **options)
    if kernel is not None:
        step_by_kernel(optimizer, kernel)
        assert isinstance(optimizer, KernelAdamW)
    for step in range(steps):
        for index, parameter in enumerate(parameters):
            # One parameter has no gradient at first and counts its own steps.
            late = index == 1 and step < 2
            parameter.grad = None if late else torch.randn_like(parameter)
        optimizer.step()
        if step == 1:
            optimizer.load_state_dict(optimizer.state_dict())
    return parameters


@pytest.mark.parametrize("options", [{}, {"amsgrad": True}])
def test_adamw_by_a_kernel_equals_torchs(options: dict[str, bool]) -> None:
    for ours, theirs in zip(
        trained(KERNELS[ADAMW], **options), trained(None, **options), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_a_kernel_that_forgets_weight_decay_is_noticed() -> None:
    def wrong(
        parameters: Any, gradients: Any, first: Any, second: Any, options: AdamWOptions
    ) -> None:
        forgotten = replace(options, weight_decay=0.0)
        KERNELS[ADAMW](parameters, gradients, first, second, forgotten)

    ours = trained(ADAMW.kernel(wrong, "planted"))  # type: ignore[arg-type]
    assert not torch.allclose(ours[0], trained(None)[0], atol=1e-5)


def test_another_optimizer_is_left_alone() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    step_by_kernel(optimizer, KERNELS[ADAMW])
    assert type(optimizer) is torch.optim.SGD


OUTPUTS = reference_kernel(WEIGHT_GRADIENT, "for a test")


def weights(tied: bool) -> torch.nn.Parameter:
    """A weight with what Megatron's gradient buffers hang on it."""
    weight: Any = torch.nn.Parameter(torch.randn(6, 4, generator=torch.Generator().manual_seed(1)))
    weight.main_grad = torch.ones(6, 4)
    weight.grad_added_to_main_grad = False
    weight.zero_out_wgrad = tied
    return weight


@pytest.mark.parametrize("tied", [False, True])
def test_the_weight_gradient_goes_into_main_grad(tied: bool) -> None:
    x = torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    bias = torch.nn.Parameter(torch.randn(6, generator=torch.Generator().manual_seed(2)))
    weight: Any = weights(tied)
    output = linear(x, weight, bias, OUTPUTS, False, False, None)
    output.square().sum().backward()
    leaves = [tensor.detach().clone().requires_grad_() for tensor in (x, weight, bias)]
    expected = torch.nn.functional.linear(*leaves)
    expected.square().sum().backward()
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(x.grad, leaves[0].grad)
    torch.testing.assert_close(bias.grad, leaves[2].grad)
    assert leaves[1].grad is not None
    torch.testing.assert_close(weight.main_grad, 1 + leaves[1].grad)
    assert weight.grad_added_to_main_grad is True
    assert weight.grad.shape == weight.shape  # what Megatron's hook sees
    if tied:
        assert not weight.grad.any()  # it is added to the embedding's gradient


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_autograd_gets_for_it_takes_no_memory(dtype: torch.dtype) -> None:
    weight: Any = torch.nn.Parameter(torch.ones(6, 4, dtype=dtype))
    weight.main_grad, weight.grad_added_to_main_grad = torch.ones(8, 4)[2:], False
    x = torch.ones(3, 2, 4, dtype=dtype)
    linear(x, weight, None, OUTPUTS, False, False, None).sum().backward()
    assert (weight.grad.dtype, weight.grad.stride()) == (dtype, weight.stride())
    assert weight.grad.data_ptr() == weight.main_grad.data_ptr()
    assert torch.equal(weight.main_grad, torch.full((6, 4), 7.0))


def test_without_main_grad_autograd_gets_the_gradient() -> None:
    x = torch.randn(3, 2, 4, requires_grad=True)
    weight = torch.nn.Parameter(torch.randn(6, 4))
    linear(x, weight, None, OUTPUTS, False, False, None).sum().backward()
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad, x.detach().sum((0, 1)).expand(6, 4))


def test_angles_are_computed_once_until_they_change() -> None:
    angles = rotary.Angles()
    freqs = torch.randn(5, 1, 1, 8)
    cos, _ = angles.of(freqs, 1.0)
    assert angles.of(freqs, 1.0)[0] is cos
    freqs += 1
    assert not torch.equal(angles.of(freqs, 1.0)[0], cos)
    torch.testing.assert_close(angles.of(freqs, 2.0)[1], 2 * freqs.sin())


def test_positions_start_again_with_every_document() -> None:
    freqs = torch.arange(5.0).view(5, 1, 1, 1)
    lengths = torch.tensor([0, 2, 2, 5], dtype=torch.int32)
    positions = rotary.Positions()
    angles = positions.angles(lengths, freqs, 5)
    assert angles.flatten().tolist() == [0, 1, 0, 1, 2]
    assert positions.angles(lengths, freqs, 5) is angles
    lengths[1:3] = 1
    assert positions.angles(lengths, freqs, 5).flatten().tolist() == [0, 0, 1, 2, 3]


def test_packed_rotary_equals_upstreams() -> None:
    """Upstream's function and ours on the same documents; run where Megatron imports."""
    rope = pytest.importorskip("megatron.core.models.common.embeddings.rope_utils")

    class OneRank:
        def size(self) -> int:
            return 1

        def rank(self) -> int:
            return 0

    class Context:
        original = staticmethod(rope._apply_rotary_pos_emb_thd)

        class host:
            kernel = staticmethod(lambda contract: reference_kernel(contract, "for a test"))

    ours = rotary._make_packed(Context())  # type: ignore[arg-type]
    tokens = torch.randn(7, 2, 8)
    lengths = torch.tensor([0, 3, 7], dtype=torch.int32)
    for longest in (4, 7, 9):
        freqs = torch.randn(longest, 1, 1, 6)
        got = ours(tokens, lengths, freqs, cp_group=OneRank())
        torch.testing.assert_close(
            got, rope._apply_rotary_pos_emb_thd(tokens, lengths, freqs, cp_group=OneRank())
        )
