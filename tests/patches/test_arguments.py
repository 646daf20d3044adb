"""The arguments phase: what changes, what is refused, and what is said."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from types import ModuleType, SimpleNamespace

import pytest

from accel_bridge.backends.cpu import CpuBackend
from accel_bridge.device.backend import Features
from accel_bridge.patches.arguments import ALL_RULES, FSDP, QUEUES, several_queues
from accel_bridge.patching.host import ArgumentError, Host, adapt_arguments


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


def test_a_library_that_is_there_keeps_its_feature(
    host: Host, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Host, "library", lambda self, name: name == "transformer_engine")
    args = Namespace(apply_rope_fusion=True, fp8="hybrid", tp_comm_overlap=True)
    assert adapt_arguments(args, ALL_RULES, host) == []
    assert said == []


NVLINK = {
    "inference_moe_token_dispatcher_type": "nvls",
    "moe_shared_expert_overlap": True,
    "transformer_impl": "inference_optimized",
    "expert_model_parallel_size": 8,
}
LATENT = {"moe_latent_size": 64}
MASK = {"create_attention_mask_in_dataloader": True, "reset_attention_mask": False}
TRITON, NO_TRITON = Features(triton=True), Features(triton=False)


@pytest.mark.parametrize(
    ("given", "changed", "installed", "features"),
    [
        # A Triton kernel is not interpreted where an unfused form computes the same.
        ({"apply_rope_fusion": True, "multi_latent_attention": True}, {}, True, TRITON),
        (
            {"apply_rope_fusion": True, "multi_latent_attention": True},
            {"apply_rope_fusion": False},
            True,
            NO_TRITON,
        ),
        ({"apply_rope_fusion": True, "multi_latent_attention": False}, {}, True, NO_TRITON),
        # Experts answer through collectives where no NVLink is.
        (NVLINK, {"inference_moe_token_dispatcher_type": "nccl"}, True, NO_TRITON),
        (
            NVLINK | LATENT,
            {"inference_moe_token_dispatcher_type": "nccl", "moe_shared_expert_overlap": False},
            True,
            NO_TRITON,
        ),
        (NVLINK | LATENT, {}, True, TRITON),
        (NVLINK | {"expert_model_parallel_size": 1}, {}, True, NO_TRITON),
        (NVLINK | {"transformer_impl": "transformer_engine"}, {}, True, NO_TRITON),
        # Megatron 0.16 took 1000; 0.17 to main divide by None.
        ({"eval_interval": None, "train_iters": 5}, {"eval_interval": 1000}, False, None),
        (
            {"eval_interval": None, "train_iters": None, "train_samples": 64},
            {"eval_interval": 1000},
            False,
            None,
        ),
        ({"eval_interval": 7, "train_iters": 5}, {}, False, None),
        ({"eval_interval": None, "train_iters": 5, "skip_train": True}, {}, False, None),
        ({"eval_interval": None, "train_iters": 5, "full_validation": True}, {}, False, None),
        # Only a mask that is plainly causal is left out: a script's own data may bring any.
        (
            MASK | {"data_path": ["a_text_document"]},
            {"create_attention_mask_in_dataloader": False},
            False,
            None,
        ),
        (MASK | {"data_path": ["a"], "reset_attention_mask": True}, {}, False, None),
        (MASK | {"data_path": None}, {}, False, None),
        # An asynchronous save uses the writer that is installed; not every format has one.
        (
            {"async_strategy": "nvrx", "async_save": True, "ckpt_format": "torch_dist"},
            {"async_strategy": "mcore"},
            False,
            None,
        ),
        ({"async_strategy": "nvrx", "async_save": True}, {}, True, None),
        ({"async_strategy": "nvrx", "async_save": False}, {}, True, None),
        ({"async_strategy": "nvrx", "async_save": False}, {}, False, None),
        *(
            (
                {"async_strategy": "nvrx", "async_save": True, "ckpt_format": form},
                {"async_save": False},
                False,
                None,
            )
            for form in ("fsdp_dtensor", "torch_dcp")
        ),
    ],
)
def test_only_what_cannot_work_changes(
    given: dict[str, object],
    changed: dict[str, object],
    installed: bool,
    features: Features | None,
    host: Host,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Host, "library", lambda self, name: installed)
    if features is not None:
        monkeypatch.setattr(CpuBackend, "features", features)
    args = Namespace(**given)
    changes = adapt_arguments(args, ALL_RULES, host)
    assert vars(args) == given | changed
    assert {change.name for change in changes} == set(changed)


@pytest.mark.parametrize(
    ("flag", "asked", "harmless"),
    [("context_parallel_size", 2, 1), ("multi_latent_attention", True, False)],
)
def test_upstreams_own_attention_is_not_asked_for_what_it_lacks(
    host: Host, monkeypatch: pytest.MonkeyPatch, flag: str, asked: object, harmless: object
) -> None:
    """Only the local spec without Transformer Engine and its shim has it."""
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
    """Megatron refuses a flag and a variable that differ; ms-swift sets both for fp16."""
    monkeypatch.setattr(host, "is_shimmed", lambda name: True)
    monkeypatch.setenv("NVTE_APPLY_QK_LAYER_SCALING", str(int(exported)))
    args = Namespace(apply_query_key_layer_scaling=True)
    adapt_arguments(args, ALL_RULES, host)
    assert args.apply_query_key_layer_scaling is exported


def test_what_only_the_real_transformer_engine_has_is_refused(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ArgumentError, match="--fp8-format cannot be used") as caught:
        adapt_arguments(Namespace(fp8="hybrid"), ALL_RULES, host)
    assert "next:     pip install transformer_engine" in str(caught.value)
    monkeypatch.setattr(Host, "library", lambda self, name: True)
    adapt_arguments(Namespace(tp_comm_overlap=True, fp8="hybrid"), ALL_RULES, host)
    monkeypatch.setattr(host, "is_shimmed", lambda name: True)
    with pytest.raises(ArgumentError) as caught:
        adapt_arguments(Namespace(tp_comm_overlap=True), ALL_RULES, host)
    assert "--tp-comm-overlap cannot be used on the cpu backend" in str(caught.value)
    assert "next:     remove --tp-comm-overlap" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "kernel", "wanted"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"num_experts": None}, True, False),
        ({"moe_expert_capacity_factor": 1.0}, True, False),
    ],
)
def test_tokens_move_by_the_kernels_where_the_backend_has_them(
    change: dict[str, object],
    kernel: bool,
    wanted: bool,
    host: Host,
    said: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = SimpleNamespace(is_reference=not kernel)
    monkeypatch.setattr(Host, "library", lambda self, name: True)
    monkeypatch.setattr(host, "is_shimmed", lambda name: True)
    monkeypatch.setattr(host.kernels, "resolve", lambda contract: found)
    moe_utils = SimpleNamespace(fused_permute=len, fused_unpermute=len)
    for name in ("megatron", "megatron.core", "megatron.core.transformer"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    package = ModuleType("megatron.core.transformer.moe")
    package.moe_utils = moe_utils
    monkeypatch.setitem(sys.modules, package.__name__, package)
    args = Namespace(moe_permute_fusion=False, num_experts=8)
    vars(args).update(change)
    adapt_arguments(args, ALL_RULES, host)
    assert args.moe_permute_fusion is wanted
    assert bool(said) is wanted
    # A library of an older version.
    moe_utils.fused_permute = None
    args.moe_permute_fusion = False
    adapt_arguments(args, ALL_RULES, host)
    assert args.moe_permute_fusion is False


@pytest.mark.parametrize("flag", FSDP)
@pytest.mark.parametrize(("before", "after"), [("1", None), ("8", "8")])
def test_fsdp_gets_several_hardware_queues(
    host: Host,
    said: list[str],
    monkeypatch: pytest.MonkeyPatch,
    flag: str,
    before: str,
    after: str | None,
) -> None:
    monkeypatch.setenv(QUEUES, before)
    several_queues(Namespace(**{flag: False}), host)
    assert os.environ[QUEUES] == before
    several_queues(Namespace(**{flag: True}), host)
    assert os.environ.get(QUEUES) == after
    assert len(said) == (after is None)


@pytest.mark.parametrize("backend", ["deepep", "hybridep", "ncclep"])
def test_the_flex_dispatcher_needs_its_library(
    host: Host, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    def arguments(**more: object) -> Namespace:
        return Namespace(
            moe_token_dispatcher_type="flex", moe_flex_dispatcher_backend=backend, **more
        )

    # NCCL EP is part of the real Transformer Engine.
    host.is_shimmed = "transformer_engine_torch".__eq__
    args = arguments(moe_enable_deepep=backend == "deepep", moe_expert_rank_capacity_factor=None)
    adapt_arguments(args, ALL_RULES, host)
    assert args.moe_token_dispatcher_type == "alltoall"
    assert args.moe_flex_dispatcher_backend == "deepep"
    assert args.moe_enable_deepep is False
    with pytest.raises(ArgumentError, match="rank-capacity-factor"):
        adapt_arguments(arguments(moe_expert_rank_capacity_factor=1.5), ALL_RULES, host)
    for name in ("moe_dispatch_fwd_dtype", "moe_combine_bwd_dtype"):
        adapt_arguments(arguments(**{name: "bf16"}), ALL_RULES, host)
        sent = arguments(**{name: "mxfp8"})
        if backend == "ncclep":
            with pytest.raises(ArgumentError, match="only NCCL EP, not installed, sends MXFP8"):
                adapt_arguments(sent, ALL_RULES, host)
        else:  # Megatron's own check refuses it
            adapt_arguments(sent, ALL_RULES, host)
    monkeypatch.setattr(Host, "library", lambda self, name: True)
    host.is_shimmed = lambda name: False
    args = arguments()
    adapt_arguments(args, ALL_RULES, host)
    assert (args.moe_token_dispatcher_type, args.moe_flex_dispatcher_backend) == ("flex", backend)


@pytest.mark.parametrize("there", [False, True])
def test_without_transformer_engine_the_local_spec_is_taken(
    host: Host, said: list[str], monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    """Megatron's default asks for it; how to get it is said."""
    monkeypatch.setattr(Host, "library", lambda self, name: there)
    args = Namespace(transformer_impl="transformer_engine", persist_layer_norm=True)
    adapt_arguments(args, ALL_RULES, host)
    assert args.persist_layer_norm is there  # torch's norm refuses it
    assert args.transformer_impl == ("transformer_engine" if there else "local")
    assert there or "pip install transformer_engine" in said[0]


def test_latent_attention_is_refused_on_the_local_spec_that_was_taken(host: Host) -> None:
    args = Namespace(transformer_impl="transformer_engine", multi_latent_attention=True)
    with pytest.raises(ArgumentError, match="no Transformer Engine"):
        adapt_arguments(args, ALL_RULES, host)
