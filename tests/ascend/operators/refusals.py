"""Calls that a real NPU's kernels refuse, and what the error must say."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
import torch_npu
from attention import triangle

Call = Callable[[], Any]


def attention(
    *, shape: tuple[int, ...] = (1, 2, 8, 8), layout: str = "BNSD", **options: Any
) -> Call:
    """A call of npu_fusion_attention that is right but for ``options``."""

    def call() -> Any:
        q, k, v = (torch.randn(shape).npu() for _ in range(3))
        settings = {
            "head_num": 2,
            **{key: value() if callable(value) else value for key, value in options.items()},
        }
        heads = settings.pop("head_num")
        k, v = settings.pop("key", k), settings.pop("value", v)
        return torch_npu.npu_fusion_attention(q, k, v, heads, layout, **settings)

    return call


def packed(q_ends: list[int], kv_ends: list[int], **options: Any) -> Call:
    return attention(
        shape=(8, 2, 8),
        layout="TND",
        actual_seq_qlen=q_ends,
        actual_seq_kvlen=kv_ends,
        **options,
    )


def mask(*sizes: int, dtype: torch.dtype = torch.bool, allow: bool = False) -> Call:
    def make() -> torch.Tensor:
        hidden = torch.zeros(*sizes) if allow else torch.ones(*sizes).triu(1)
        return hidden.to(dtype).npu()

    return make


def softmax(*sizes: int) -> Call:
    return lambda: torch_npu.npu_scaled_masked_softmax(
        torch.randn(sizes).npu(), torch.zeros(sizes, dtype=torch.bool).npu(), 1.0, False
    )


def grouped(ends: list[int], **options: Any) -> Call:
    def call() -> Any:
        settings = {"group_type": 0, "group_list_type": 0, "split_item": 3, **options}
        x, weight = torch.randn(8, 4).npu(), torch.randn(len(ends), 4, 4).npu()
        return torch_npu.npu_grouped_matmul(
            [x], [weight], group_list=torch.tensor(ends).npu(), **settings
        )

    return call


def permute_padded() -> Any:
    return torch_npu.npu_moe_token_permute(
        torch.randn(4, 4).npu(), torch.zeros(4, 2, dtype=torch.long).npu(), None, True
    )


def drop_and_pad() -> Any:
    return torch_npu.npu_moe_token_permute_with_routing_map(
        torch.randn(4, 4).npu(),
        torch.ones(4, 2, dtype=torch.bool).npu(),
        num_out_tokens=8,
        drop_and_pad=True,
    )


def norm(dtype: torch.dtype) -> Call:
    return lambda: torch_npu.npu_rms_norm(torch.zeros(2, 8).npu(), torch.ones(8, dtype=dtype).npu())


@cache
def group() -> str:
    """The name of a group of this rank alone."""
    dist.init_process_group("hccl", store=dist.HashStore(), rank=0, world_size=1)
    dist.all_reduce(torch.ones(1).npu())
    backend: Any = dist.group.WORLD
    return str(backend._get_backend(torch.device("npu")).get_hccl_comm_name(0))


def gathered(inner: int, dtype: torch.dtype = torch.bfloat16, **options: Any) -> Call:
    def call() -> Any:
        x, weight = torch.zeros(4, inner, dtype=dtype).npu(), torch.zeros(inner, 4, dtype=dtype)
        made = {key: value() if callable(value) else value for key, value in options.items()}
        return torch_npu.npu_all_gather_base_mm(x, weight.npu(), group(), 2, **made)

    return call


#: Name of the rule: the call, and a part of the error's text.
REFUSED: dict[str, tuple[Call, str]] = {
    "dtype": (
        attention(key=lambda: torch.randn(1, 2, 8, 8, dtype=torch.half).npu()),
        "query, key and value must have one dtype",
    ),
    "pse_dtype": (
        attention(pse=lambda: torch.randn(1, 2, 8, 8).half().npu()),
        "pse must have the query's dtype",
    ),
    "heads": (
        attention(key=lambda: torch.randn(1, 3, 8, 8).npu()),
        "head_num must be a multiple of the key's heads",
    ),
    "norm_dtype": (norm(torch.half), "gamma must be float32 or have the input's dtype"),
    "key_size": (
        attention(key=lambda: torch.randn(1, 2, 8, 4).npu()),
        "query and key must have one head dimension",
    ),
    "keep": (attention(keep_prob=1.5), "keep_prob"),
    "mask_size": (
        attention(sparse_mode=1, atten_mask=mask(4, 8)),
        "atten_mask must cover every query and key",
    ),
    **{
        f"mask_of_mode_{mode}": (
            attention(sparse_mode=mode, atten_mask=mask(8, 8)),
            f"sparse_mode {mode} takes the compressed mask of 2048 x 2048",
        )
        for mode in (2, 3, 4)
    },
    "mask_of_mode_6": (
        attention(sparse_mode=6, prefix=[2], atten_mask=triangle),
        "takes the compressed mask of 3072 x 2048",
    ),
    "inverted": (
        attention(sparse_mode=2, atten_mask=lambda: triangle().logical_not()),
        "the compressed mask must be the upper triangle",
    ),
    "band": (
        attention(pre_tockens=2, next_tockens=0, atten_mask=mask(8, 8)),
        "atten_mask allows what pre_tockens and next_tockens forbid",
    ),
    "no_band": (
        attention(sparse_mode=4, pre_tockens=2, next_tockens=-3, atten_mask=triangle),
        "pre_tockens and next_tockens leave no band",
    ),
    "no_prefix": (attention(sparse_mode=5, atten_mask=mask(1, 1, 8, 8)), "need prefix"),
    "prefix": (
        attention(sparse_mode=5, prefix=[9], atten_mask=mask(1, 1, 8, 8)),
        "prefix must be within",
    ),
    "prefix_mask": (
        attention(sparse_mode=5, prefix=[2], atten_mask=mask(8, 8)),
        "sparse_mode 5 takes a mask of BNSS or B1SS",
    ),
    "packed_5": (
        packed([8], [8], sparse_mode=5, prefix=[2], atten_mask=mask(1, 1, 8, 8)),
        "The sparse_mode value must be in range of [0,5) or (5,8]",
    ),
    "packed_7": (
        packed([4, 8], [4, 8], sparse_mode=7, pre_tockens=2, next_tockens=0, atten_mask=triangle),
        "sparse_mode 7: pre_tockens >= the last Skv",
    ),
    "packed_8": (
        packed([4, 8], [4, 8], sparse_mode=8, pre_tockens=2, next_tockens=0, atten_mask=triangle),
        "sparse_mode 8: pre_tockens >= the first Skv",
    ),
    "packed_lengths": (packed([4, 8], [8]), "must be the same and cannot be empty"),
    "packed_order": (packed([6, 4], [4, 8]), "must be cumulative"),
    "packed_end": (packed([4, 9], [4, 8]), "end within T"),
    "packed_bias": (
        packed([8], [8], pse=lambda: torch.randn(1, 2, 8, 8).npu()),
        "pse with TND is not emulated",
    ),
    "packed_rows": (
        packed([8], [8], atten_mask=lambda: torch.ones(8, 8, dtype=torch.bool).npu()),
        "no row of atten_mask may be hidden",
    ),
    "groups_beyond": (grouped([4, 9]), "group_list ends beyond x"),
    "groups_order": (grouped([6, 4]), "group_list must not decrease"),
    "groups_type": (grouped([4, 8], group_list_type=3), "group_list_type"),
    "permute_padded": (permute_padded, "padded_mode"),
    "drop_and_pad": (drop_and_pad, "drop_and_pad"),
}
#: Operators without a row: the error names the function that is missing.
MISSING: dict[str, tuple[Call, str]] = {
    "legacy": (
        lambda: torch.nn.functional.hardswish(torch.randn(3).npu()),
        "the operator HardSwish is not emulated; add a row for aclnnHardswish (which torch_npu "
        "looked for last) to backends/ascend/emulator/sources/operators",
    ),
    "function": (lambda: torch.angle(torch.randn(3).npu()), "aclnnAngleV2"),
}


def refused(call: Call, text: str) -> Callable[[], None]:
    def check() -> None:
        said = ""
        try:
            call()
            torch.npu.synchronize()
        except Exception as error:
            said = str(error)
        assert text in said, said or "it was accepted"
        # The device goes on.
        assert torch.ones(2, device="npu").sum().item() == 2

    return check


CHECKS: dict[str, Callable[[], None]] = {
    **{f"refused-{name}": refused(*pair) for name, pair in REFUSED.items()},
    **{f"missing-{name}": refused(*pair) for name, pair in MISSING.items()},
}
