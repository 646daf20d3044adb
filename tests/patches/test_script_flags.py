"""Flags of Ascend scripts: parsed, mapped, ignored aloud or refused."""

from __future__ import annotations

import argparse
from argparse import Namespace
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from accel_bridge.backends.cpu import CpuBackend
from accel_bridge.kernels import (
    ATTENTION,
    AttentionMask,
    AttentionOptions,
    Layout,
    reference_kernel,
)
from accel_bridge.kernels.comm_gemm_overlap import CHOICE, OverlapChoice
from accel_bridge.kernels.context_parallel import attend_in
from accel_bridge.patches.mindspeed import script_flags
from accel_bridge.patches.mindspeed.attention_flags import LAYOUTS, resolve
from accel_bridge.patches.mindspeed.mapped_flags import TRANSLATED, Effect
from accel_bridge.patches.mindspeed.script_flags import FLAGS, add_flags, settle
from accel_bridge.patches.mindspeed.translations import offload
from accel_bridge.patching.host import ArgumentError, Host


def host() -> Host:
    return Host(CpuBackend(), lambda args: None, print, lambda: None)


def parse(*words: str, seq_length: int = 4096) -> Namespace:
    """A parser with a few of Megatron's arguments, and the added ones."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--seq-length", type=int, default=seq_length)
    parser.add_argument("--window-size", default=None)
    parser.add_argument("--qk-head-dim", type=int, default=128)
    parser.add_argument("--multi-latent-attention", action="store_true")
    return add_flags(parser).parse_args(words)


@pytest.mark.parametrize("spelling", [("--pre", "--next"), ("--pre-tockens", "--next-tockens")])
@pytest.mark.parametrize(
    ("pre", "after", "seq", "window"),
    [
        (65536, 65536, 4096, None),
        (65536, 0, 4096, None),
        (2048, 0, 4096, (2048, 0)),
        (2048, 0, 2050, (2048, 0)),
        # 2048 before it and itself are all of 2049.
        (2048, 0, 2049, None),
        (2048, 65536, 4096, (2048, -1)),
        (0, 0, 2, (0, 0)),
    ],
)
def test_band(
    spelling: tuple[str, str], pre: int, after: int, seq: int, window: tuple[int, int] | None
) -> None:
    args = parse(f"{spelling[0]}={pre}", f"{spelling[1]}={after}", seq_length=seq)
    (line,) = resolve(args, host())
    assert args.window_size == window
    assert f"--pre-tockens {pre} --next-tockens {after}" in line
    if window is None and seq <= 2050:
        assert "restricts nothing" in line


@pytest.mark.parametrize(("mode", "window"), [(0, (8, 0)), (4, (8, 0)), (2, None), (3, None)])
def test_sparse_mode_decides_whether_the_band_counts(
    mode: int, window: tuple[int, int] | None
) -> None:
    args = parse("--pre-tockens", "8", "--sparse-mode", str(mode))
    assert len(resolve(args, host())) == 2
    assert args.window_size == window


@pytest.mark.parametrize(("order", "layout"), list(LAYOUTS.items()))
def test_shape_order_chooses_the_layout(order: str, layout: str) -> None:
    chosen = host()
    assert resolve(parse("--shape_order", order), chosen)
    assert chosen.attention_layout == layout


def test_all_bad_values_are_one_error() -> None:
    args = parse("--pre", "-1", "--next", "-2", "--shape-order", "TND", "--sparse-mode", "7")
    with pytest.raises(ArgumentError) as caught:
        resolve(args, host())
    for word in ("4 attention flag(s)", "--pre-tockens -1", "--next-tockens -2", "TND", "7"):
        assert word in str(caught.value)


def test_two_windows_contradict() -> None:
    args = parse("--pre", "8", "--next", "0")
    args.window_size = (9, 0)
    with pytest.raises(ArgumentError, match="Two attention windows"):
        resolve(args, host())
    args.window_size = (8, 0)
    resolve(args, host())


@pytest.mark.parametrize("layout", sorted(set(LAYOUTS.values())))
def test_every_layout_gives_the_same_attention(layout: Layout) -> None:
    reference = reference_kernel(ATTENTION, "a test")
    generator = torch.Generator().manual_seed(3)
    query = torch.randn(9, 2, 4, 8, generator=generator)
    key, value = (torch.randn(9, 2, 2, 8, generator=generator) for _ in range(2))
    mask = AttentionMask(causal=True, window=(3, 0))
    plain = reference(query, key, value, AttentionOptions(layout="SBHD", mask=mask))
    assert isinstance(plain, torch.Tensor)
    expected = plain.flatten(-2)
    options = AttentionOptions(layout=layout, heads=4, mask=mask)
    found = attend_in(reference, query, key, value, options)
    torch.testing.assert_close(found, expected)
    wrong = attend_in(reference, query.flip(2), key, value, options)
    assert not torch.allclose(wrong, expected)


def test_flags_that_tune_speed_are_one_warning() -> None:
    args = parse(
        "--use-fused-rmsnorm", "--context-parallel-algo", "ulysses_cp_algo", "--moe-bmm-mc2"
    )
    warned: list[str] = []
    assert settle(args, warned.append) == []
    (line,) = warned
    assert "--use-fused-rmsnorm, --context-parallel-algo, --moe-bmm-mc2" in line
    assert set(vars(args)) == set(vars(parse()))


def test_flags_that_change_training_are_one_error() -> None:
    args = parse("--post-norm", "--tp-2d", "--use-mc2", "--expert-interval", "2")
    with pytest.raises(ArgumentError) as caught:
        settle(args, lambda line: None)
    for word in ("3 flag(s)", "--post-norm: changes the model", "--tp-2d", "--moe-layer-freq"):
        assert word in str(caught.value)


def test_flags_that_megatron_has_under_another_name() -> None:
    args = parse("--multi-head-latent-attention", "--qk-nope-head-dim", "64")
    lines = settle(args, lambda line: None)
    assert args.multi_latent_attention is True
    assert args.qk_head_dim == 64
    assert lines[1] == "flag --qk-nope-head-dim 64: qk_head_dim = 64"
    with pytest.raises(ArgumentError, match="takes a number"):
        settle(parse("--qk-nope-head-dim", "many"), lambda line: None)


@pytest.mark.parametrize("flag", ["--use-ascend-mc2", "--use-mc2", "--use-ascend-coc"])
def test_gemms_are_fused_with_their_communication(flag: str) -> None:
    args = parse(flag)
    assert settle(args, lambda line: None) == [f"flag {flag}: comm_gemm_overlap = True"]
    for asked, fused in ((args, True), (parse(), False)):
        kept: dict[str, object] = {}
        host = SimpleNamespace(once=lambda key, make, kept=kept: kept.setdefault(key, make()))
        script_flags._resolve(SimpleNamespace(host=host), asked)  # type: ignore[arg-type]
        assert host.once(CHOICE, OverlapChoice).fused == fused


def test_a_flag_that_the_script_has_itself_stays_its_own() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--use-mc2", type=int)
    parser.add_argument("--shape-order", default="mine")
    args = add_flags(parser).parse_args(["--use-mc2", "5"])
    assert (args.use_mc2, args.shape_order) == (5, "mine")


def test_the_table_is_whole() -> None:
    for flag in FLAGS.values():
        assert flag.name.startswith("--")
        assert flag.means
        mapped = flag.effect is Effect.MAPPED
        assert mapped == ((flag.to is not None) or flag.name in TRANSLATED)
    assert len(FLAGS) > 200


def model(**values: object) -> argparse.Namespace:
    """Megatron's arguments of a model with experts."""
    known = {
        "num_layers": 8,
        "num_experts": 4,
        "moe_layer_freq": 1,
        "ffn_hidden_size": 64,
        "moe_ffn_hidden_size": 16,
        "pipeline_model_parallel_size": 1,
        "pipeline_model_parallel_layout": None,
        "num_layers_per_virtual_pipeline_stage": None,
        "tensor_model_parallel_size": 2,
        "expert_model_parallel_size": 2,
        "mtp_num_layers": None,
    }
    return argparse.Namespace(**(known | values))


def settled(args: argparse.Namespace, *words: str) -> argparse.Namespace:
    """``args`` after the flags ``words``."""
    parser = add_flags(argparse.ArgumentParser())
    settle(parser.parse_args(words, args), lambda line: None)
    return args


def test_layers_without_experts_come_first() -> None:
    args = settled(model(), "--first-k-dense-replace", "3", "--n-shared-experts", "2")
    assert args.moe_layer_freq == [0, 0, 0, 1, 1, 1, 1, 1]
    assert args.moe_shared_expert_intermediate_size == 32


def test_empty_layers_go_and_the_others_stay_in_their_stage() -> None:
    args = settled(model(), "--noop-layers", "0,7", "--first-k-dense-replace", "2")
    assert (args.num_layers, args.pipeline_model_parallel_layout) == (6, None)
    assert args.moe_layer_freq == [0, 1, 1, 1, 1, 1]
    stages = model(pipeline_model_parallel_size=2, num_layers_per_virtual_pipeline_stage=2)
    args = settled(stages, "--noop-layers", "0,7")
    assert args.pipeline_model_parallel_layout == "Et|tt|tt|tL"
    assert args.num_layers_per_virtual_pipeline_stage is None
    with pytest.raises(ArgumentError, match="layer numbers"):
        settled(model(), "--noop-layers", "8")


def test_layers_of_each_stage() -> None:
    args = settled(model(pipeline_model_parallel_size=2), "--num-layer-list", "3,5")
    assert args.pipeline_model_parallel_layout == "Ettt|tttttL"
    with pytest.raises(ArgumentError, match="does not fit"):
        settled(model(pipeline_model_parallel_size=2), "--num-layer-list", "3,4")


def test_values_that_only_mindspeed_knows() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--moe-router-load-balancing-type", choices=["none"], nargs="+")
    parser.add_argument("--moe-token-dispatcher-type", choices=["alltoall"])
    parser.add_argument("--spec", nargs="*")
    add_flags(parser)
    words = "--moe-router-load-balancing-type softmax_topk --moe-token-dispatcher-type alltoall_seq"
    spec = "--spec mindspeed_llm.tasks.models.spec.qwen3_spec layer_spec"
    args = parser.parse_args(f"{words} {spec}".split(), model())
    settle(args, lambda line: None)
    assert args.moe_router_load_balancing_type == "none"
    assert args.moe_router_pre_softmax is True
    assert (args.moe_token_dispatcher_type, args.spec) == ("alltoall", None)
    # With normalized weights it is a softmax over the chosen experts.
    args = parser.parse_args(f"{words} --norm-topk-prob".split(), model())
    settle(args, lambda line: None)
    assert args.moe_router_pre_softmax is False
    refused = parser.parse_args("--moe-router-load-balancing-type sparsemixer_topk".split())
    with pytest.raises(ArgumentError, match="SparseMixer"):
        settle(refused, lambda line: None)


@pytest.mark.parametrize("own", [True, False])
def test_a_value_that_megatron_knows_too_is_left_alone(own: bool) -> None:
    parser = argparse.ArgumentParser()
    choices = ["softmax", *["sqrtsoftplus"] * own]
    parser.add_argument("--moe-router-score-function", choices=choices)
    args = add_flags(parser).parse_args(["--moe-router-score-function", "sqrtsoftplus"])
    with nullcontext() if own else pytest.raises(ArgumentError, match="no such feature"):
        assert settle(args, lambda line: None) == []
    assert args.moe_router_score_function == "sqrtsoftplus"


def test_instruction_data_must_be_there(tmp_path: Path) -> None:
    prefix = tmp_path / "alpaca"
    args = model(data_path=[str(prefix)])
    with pytest.raises(ArgumentError, match="names no instruction data"):
        settled(args, "--is-instruction-dataset")
    for name in ("input_ids", "labels", "attention_mask"):
        (tmp_path / f"alpaca_packed_{name}_document.bin").touch()
    args = settled(
        model(data_path=["0.5", str(prefix)]), "--is-instruction-dataset", "--no-shuffle"
    )
    assert args.accel_bridge_instruction["in_order"] is True
    packed = model(data_path=[str(prefix)], reset_attention_mask=True)
    with pytest.raises(ArgumentError, match="later Megatron"):
        settled(packed, "--is-instruction-dataset")
    with pytest.raises(ArgumentError, match="stands alone"):
        settled(model(), "--neat-pack")


def test_swapped_attention_is_offloaded() -> None:
    known = {"fine_grained_activation_offloading": False, "offload_modules": []}
    attention = ["qkv_linear", "core_attn", "attn_proj"]
    for words, moved in (
        (("--swap-attention",), attention),
        (("--swap-attention", "--swap-modules", "self_attention"), attention),
        (
            ("--swap-attention", "--swap-modules", "input_layernorm,pre_mlp_layernorm"),
            ["attn_norm", "mlp_norm"],
        ),
        # Names of MindSpeed's older layers, which this Megatron does not have.
        (("--swap-modules", "post_attention_norm", "--swap-attention"), attention),
    ):
        args = settled(model(**known), *words)
        offload(args)
        assert (args.fine_grained_activation_offloading, args.offload_modules) == (True, moved)
    for values, words in (
        (known | {"recompute_granularity": "full"}, ("--swap-attention",)),
        (known, ("--swap-modules", "self_attention")),
        # An older Megatron moves nothing: more memory, the same losses.
        ({}, ("--swap-attention",)),
    ):
        args = settled(model(**values), *words)
        offload(args)
        assert not getattr(args, "fine_grained_activation_offloading", False)
