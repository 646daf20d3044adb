"""Gated activations of an MLP that Megatron computes in many steps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from patched_function import patched
from torch.nn import functional

from accel_bridge.kernels import GATED_ACTIVATION, Contract
from accel_bridge.patches.activation import PATCHES


def quick_gelu(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(1.702 * x)


def upstream(self: Any, hidden_states: torch.Tensor, per_token_scale: Any = None) -> Any:
    """What Megatron does with an activation that it does not fuse."""
    self.long.append(True)
    rows, bias = self.linear_fc1(hidden_states)
    gate, linear = (rows if bias is None else rows + bias).chunk(2, -1)
    if (bound := self.config.activation_func_clamp_value) is not None:
        gate, linear = gate.clamp(max=bound), linear.clamp(-bound, bound)
    active = self.config.activation_func(gate) * (linear + self.config.glu_linear_offset)
    if per_token_scale is not None:
        active = active * per_token_scale
    return self.linear_fc2(active)


def shortened() -> Any:
    """Megatron's forward pass under the patch."""

    def kernel(contract: Contract[Any, Any]) -> Any:
        assert contract is GATED_ACTIVATION
        return contract.reference

    host, module = SimpleNamespace(kernel=kernel), SimpleNamespace(quick_gelu=quick_gelu)
    return patched(PATCHES, upstream, "unfused-glu", host=host, module=module)


def mlp(**config: Any) -> Any:
    torch.manual_seed(0)
    first, second = torch.nn.Linear(6, 16), torch.nn.Linear(8, 6)
    usual = {
        "gated_linear_unit": True,
        "bias_activation_fusion": False,
        "activation_func": quick_gelu,
        "activation_func_clamp_value": None,
        "glu_linear_offset": 0.0,
    }
    return SimpleNamespace(
        config=SimpleNamespace(**usual | config),
        linear_fc1=lambda x: (functional.linear(x, first.weight), first.bias),
        linear_fc2=lambda x: (second(x), None),
        long=[],
    )


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"activation_func": functional.silu},
        {"activation_func_clamp_value": 0.3},
        {"glu_linear_offset": 1.0},
    ],
)
def test_unfused_activations_are_megatrons(config: dict[str, Any]) -> None:
    layer, x = mlp(**config), torch.randn(3, 2, 6)
    found, _ = shortened()(layer, x, padding_mask=None)
    assert not layer.long, "the short way"
    torch.testing.assert_close(found, upstream(layer, x)[0])


@pytest.mark.parametrize(
    ("config", "probabilities"),
    [
        ({"gated_linear_unit": False}, []),
        ({"bias_activation_fusion": True}, []),
        ({"use_te_activation_func": True}, []),
        ({"activation_func": functional.relu}, []),
        ({}, [torch.ones(3, 2, 1)]),
    ],
)
def test_what_the_contract_does_not_say_stays_megatrons(
    config: dict[str, Any], probabilities: list[torch.Tensor]
) -> None:
    layer = mlp(**config)
    shortened()(layer, torch.randn(3, 2, 6), *probabilities)
    assert layer.long
