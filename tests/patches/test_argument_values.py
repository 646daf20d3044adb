"""Numbers that are none, formats without kernels and models beyond all memory are refused."""

from __future__ import annotations

import sys
from argparse import Namespace
from types import SimpleNamespace
from typing import Any

import pytest

from accel_bridge.device.backend import Features
from accel_bridge.patches.argument_values import check_values
from accel_bridge.patching.host import ArgumentError


def host(*, is_shimmed: bool = True, missing: str | None = None, on_host: bool = True) -> Any:
    """A host with, or without, the shim and its kernels."""
    return SimpleNamespace(
        backend=SimpleNamespace(name="cpu"),
        features=Features(tensors_on_host=on_host),
        is_shimmed=lambda name: is_shimmed and name == "transformer_engine_torch",
        missing_kernel=lambda name: missing,
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("attention_dropout", float("inf")),
        ("lr", float("nan")),
        ("weight_decay", float("-inf")),
        ("clip_grad", float("-inf")),
        ("num_experts", 10**30),
        ("seed", -(2**70)),
        ("rampup_batch_size", [1, 10**30]),
        ("betas", (0.9, float("nan"))),
    ],
)
def test_a_number_that_is_none_is_refused(
    name: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag = f"--{name.replace('_', '-')}"
    monkeypatch.setattr(sys, "argv", ["train.py", f"{flag}=1e400"])
    with pytest.raises(ArgumentError, match=flag) as caught:
        check_values(Namespace(**{name: value}), host())
    assert caught.value.evidence == (f"{flag}=1e400",)


def test_fp8_needs_the_backends_kernels_below_the_extension_alone() -> None:
    args = Namespace(fp8="hybrid")
    check_values(args, host())
    check_values(args, host(is_shimmed=False, missing="no kernel"))
    with pytest.raises(ArgumentError, match="--fp8-format cannot be used"):
        check_values(args, host(missing="no kernel"))


@pytest.mark.parametrize(
    "sizes",
    [
        {"num_layers": 2, "num_experts": 10**12, "hidden_size": 64},
        {"num_layers": 2**60, "hidden_size": 8},
        {"num_layers": 1, "hidden_size": 8, "ffn_hidden_size": 2**50},
    ],
)
def test_a_model_beyond_all_memory_is_refused_where_the_kernel_would_kill(
    sizes: dict[str, int],
) -> None:
    with pytest.raises(ArgumentError, match="larger than the memory"):
        check_values(Namespace(**sizes), host())
    check_values(Namespace(**sizes), host(on_host=False))
    # Experts in one layer of many, and other machines for the rest.
    check_values(Namespace(num_layers=1, hidden_size=8, num_experts=4, moe_layer_freq=2), host())
