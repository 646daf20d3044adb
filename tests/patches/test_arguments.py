"""The arguments phase: what changes, what is refused, and what is said."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace

import pytest

from accel_bridge._arguments import ArgumentError, ArgumentRule, adapt_arguments
from accel_bridge._backend import Features
from accel_bridge._host import Host
from accel_bridge.backends.cpu._backend import CpuBackend
from accel_bridge.patches.arguments import ALL_RULES


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def host(said: list[str], monkeypatch: pytest.MonkeyPatch) -> Host:
    """The CPU, with no CUDA library installed."""
    monkeypatch.setattr(Host, "library", lambda self, name: False)
    return Host(CpuBackend(), lambda args: None, said.append, lambda: None)


def test_each_change_is_one_line_with_old_new_and_why(host: Host, said: list[str]) -> None:
    args = Namespace(gradient_accumulation_fusion=True, apply_rope_fusion=False)
    changes = adapt_arguments(args, ALL_RULES, host)
    assert args.gradient_accumulation_fusion is False
    assert [change.name for change in changes] == ["gradient_accumulation_fusion"]
    assert said == [
        "argument gradient_accumulation_fusion: True -> False "
        "(needs fused_weight_gradient_mlp_cuda; the unfused form computes the same)"
    ]


def test_a_second_configuration_is_adapted_without_a_second_line(
    host: Host, said: list[str]
) -> None:
    for _ in range(2):
        config = Namespace(moe_grouped_gemm=True)
        adapt_arguments(config, ALL_RULES, host)
        assert config.moe_grouped_gemm is False
    assert len(said) == 1


def test_a_library_that_is_there_keeps_its_feature(
    host: Host, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Host, "library", lambda self, name: name == "transformer_engine")
    args = Namespace(apply_rope_fusion=True, fp8="hybrid", tp_comm_overlap=True)
    assert adapt_arguments(args, ALL_RULES, host) == []
    assert said == []


@pytest.mark.parametrize(("latent", "compiled"), [(True, True), (True, False), (False, False)])
def test_a_triton_kernel_is_not_interpreted_where_an_unfused_form_computes_the_same(
    host: Host, monkeypatch: pytest.MonkeyPatch, latent: bool, compiled: bool
) -> None:
    monkeypatch.setattr(Host, "library", lambda self, name: True)
    monkeypatch.setattr(CpuBackend, "features", Features(triton=compiled))
    args = Namespace(apply_rope_fusion=True, multi_latent_attention=latent)
    adapt_arguments(args, ALL_RULES, host)
    assert args.apply_rope_fusion is (compiled or not latent)


@pytest.mark.parametrize(
    ("flag", "asked", "harmless"),
    [("context_parallel_size", 2, 1), ("multi_latent_attention", True, False)],
)
def test_upstreams_own_attention_is_not_asked_for_what_it_lacks(
    host: Host, monkeypatch: pytest.MonkeyPatch, flag: str, asked: object, harmless: object
) -> None:
    """Only the local spec without Transformer Engine and its stand-in has it."""
    local = {"transformer_impl": "local"}
    adapt_arguments(Namespace(**local, **{flag: harmless}), ALL_RULES, host)
    adapt_arguments(Namespace(**{flag: asked}), ALL_RULES, host)  # a configuration of some code
    with pytest.raises(ArgumentError, match="ACCEL_BRIDGE_LIBRARIES"):
        adapt_arguments(Namespace(**local, **{flag: asked}), ALL_RULES, host)
    monkeypatch.setattr(Host, "library", lambda self, name: True)
    adapt_arguments(Namespace(**local, **{flag: asked}), ALL_RULES, host)


@pytest.mark.parametrize("exported", [False, True])
def test_the_environment_may_ask_for_layer_scaling_too(
    host: Host, monkeypatch: pytest.MonkeyPatch, exported: bool
) -> None:
    """Megatron compares flag and variable: where both are given, both stay."""
    monkeypatch.setattr(Host, "stands_in", lambda self, name: True)
    monkeypatch.setenv("NVTE_APPLY_QK_LAYER_SCALING", str(int(exported)))
    args = Namespace(apply_query_key_layer_scaling=True)
    adapt_arguments(args, ALL_RULES, host)
    assert args.apply_query_key_layer_scaling is exported


def test_what_only_the_real_transformer_engine_has_is_refused(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Host, "library", lambda self, name: True)
    adapt_arguments(Namespace(tp_comm_overlap=True), ALL_RULES, host)
    monkeypatch.setattr(Host, "stands_in", lambda self, name: True)
    with pytest.raises(ArgumentError) as caught:
        adapt_arguments(Namespace(tp_comm_overlap=True), ALL_RULES, host)
    assert "--tp-comm-overlap cannot be used on the cpu backend" in str(caught.value)
    assert "next:     remove --tp-comm-overlap" in str(caught.value)


@pytest.mark.parametrize(("reset", "wanted"), [(False, False), (True, True)])
def test_only_a_mask_that_is_plainly_causal_is_left_out(
    reset: bool, wanted: bool, host: Host
) -> None:
    args = Namespace(create_attention_mask_in_dataloader=True, reset_attention_mask=reset)
    adapt_arguments(args, ALL_RULES, host)
    assert args.create_attention_mask_in_dataloader is wanted


def test_a_rule_whose_argument_does_not_exist_is_not_asked(host: Host) -> None:
    rule = ArgumentRule(name="gone", when=lambda args, host: args.gone, value=1, why="a test")
    assert adapt_arguments(Namespace(), [rule], host) == []
    assert adapt_arguments(Namespace(gone=True), [replace(rule, value=True)], host) == []
