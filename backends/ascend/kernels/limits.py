"""The argument rules of torch_npu's operators, as data: checked here, and shown in docs/ascend.md.

Every row is from op-plugin's sequences (docs/zh/custom_APIs/torch_npu/torch_npu-OPERATOR.md) unless
its source says otherwise. A call outside them goes to the reference; the rule is the reason given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

#: Precisions that the operators below compute in.
FLOATS: Final = (torch.float16, torch.bfloat16, torch.float32)
#: Those of operators that accumulate in float32 beside their inputs.
HALVES: Final = FLOATS[:2]


@dataclass(frozen=True, slots=True)
class Limit:
    """The range of one number.

    :param operator: name in ``torch.ops.npu``.
    :param what: the number, in words.
    :param low: smallest value, inclusive.
    :param high: largest value, inclusive.
    :param divisor: what the number must be a multiple of.
    :param source: where the rule is documented.
    :param refused: the emulator's refusal, by its name in tests/ascend/operators/refusals.py.
    """

    operator: str
    what: str
    low: int
    high: int
    divisor: int = 1
    source: str = "op-plugin docs"
    refused: str = ""

    @property
    def text(self) -> str:
        """The rule in words."""
        multiple = f", a multiple of {self.divisor}" if self.divisor > 1 else ""
        return f"{self.what} is {self.low} to {self.high}{multiple}"

    def objection(self, value: int) -> str | None:
        """None if ``value`` is in range, else the rule that it breaks."""
        if self.low <= value <= self.high and value % self.divisor == 0:
            return None
        return f"{self.operator}: {self.text}, not {value}"


@dataclass(frozen=True, slots=True)
class Condition:
    """A rule that is not a range.

    :param text: the rule.
    :param kept: how the kernels obey it.
    :param refused: as for :class:`Limit`; or, after a dash, why the emulator accepts such calls.
    """

    operator: str
    text: str
    kept: str
    source: str = "op-plugin docs"
    refused: str = ""


_FA: Final = "npu_fusion_attention"
#: How rules of products with communication are kept.
_ELSE_APART: Final = "checked; else the product and the collective one after the other"
_ACLNN: Final = "CANN, aclnnFlashAttentionScore"

BATCH: Final = Limit(_FA, "batch size", 1, 2_000_000, refused="batch")
SEQUENCE: Final = Limit(_FA, "sequence length", 1, 1_000_000, refused="sequence")
HEADS: Final = Limit(_FA, "number of query heads", 1, 256, refused="many_heads")
HEAD_SIZE: Final = Limit(_FA, "head size", 1, 768, refused="head_size")
PACKED_TOKENS: Final = Limit(
    _FA, "number of packed tokens (TND)", 1, 1_000_000, refused="packed_tokens"
)
DOCUMENTS: Final = Limit(
    _FA, "number of packed sequences (TND)", 1, 1024, refused="packed_documents"
)
ROTARY_SIZE: Final = Limit("npu_rotary_mul", "rotated size", 2, 894, 2, refused="rotary_size")
ROTARY_PRODUCT: Final = Limit(
    "npu_rotary_mul", "batch x heads (interleave)", 1, 999, refused="rotary_product"
)
ROTARY_SIDE: Final = Limit(
    "npu_rotary_mul", "batch, and heads (half)", 1, 999, refused="rotary_side"
)
SOFTMAX_SIDE: Final = Limit(
    "npu_scaled_masked_softmax", "queries, and keys", 32, 4096, 32, refused="softmax_width"
)
GROUPS: Final = Limit("npu_grouped_matmul", "number of groups", 1, 1024, refused="groups_many")
GROUPED_INNER: Final = Limit(
    "npu_grouped_matmul", "last dimension of a factor", 1, 65_535, refused="groups_inner"
)
GATHERED_INNER: Final = Limit(
    "npu_all_gather_base_mm", "the summed dimension", 256, 65_534, refused="product_inner"
)
SCATTERED_INNER: Final = Limit(
    "npu_mm_reduce_scatter_base", "the summed dimension", 256, 65_534, refused="product_inner"
)

LIMITS: Final = (
    BATCH,
    SEQUENCE,
    HEADS,
    HEAD_SIZE,
    PACKED_TOKENS,
    DOCUMENTS,
    ROTARY_SIZE,
    ROTARY_PRODUCT,
    ROTARY_SIDE,
    SOFTMAX_SIDE,
    GROUPS,
    GROUPED_INNER,
    GATHERED_INNER,
    SCATTERED_INNER,
)

CONDITIONS: Final = (
    Condition(
        "all of them",
        "float16, bfloat16 or float32",
        "float64 goes to the reference",
        refused="- torch_npu turns float64 into float32",
    ),
    Condition(
        _FA,
        "without atten_mask attention is full, whatever sparse_mode, pre_tockens and next_tockens",
        "asserted: a mode other than 0, or a band, is never sent without its mask",
        refused="- without a mask the call is defined",
    ),
    Condition(
        _FA,
        "atten_mask: bool, True = hidden; BNSS, B1SS, 11SS or SS",
        "masks are expanded to one of these; a mask per head is expanded to every batch row",
        refused="mask_size",
    ),
    Condition(
        _FA,
        "sparse_mode 2 (causal from the top left), 3 (from the bottom right) and 4 (band) take the "
        "2048 x 2048 upper triangle",
        "one triangle per device, made once",
        _ACLNN,
        refused="mask_of_mode_2",
    ),
    Condition(
        _FA,
        "sparse_mode 4 counts pre_tockens and next_tockens from the bottom right; both inclusive",
        "bands that count from the top left are shifted by sk - sq; a band with a negative side "
        "goes through mode 0 and a whole mask",
        _ACLNN,
        refused="no_band",
    ),
    Condition(
        _FA,
        "sparse_mode 0: atten_mask must agree with pre_tockens and next_tockens",
        "whole masks are sent with both unlimited",
        refused="band",
    ),
    Condition(
        _FA,
        "key and value have one shape, or Dk >= Dv (the sequence says both)",
        "a narrower value is padded with zeros; a wider one goes to the reference",
        refused="value_size",
    ),
    Condition(
        _FA,
        "TND: cumulative lengths without the leading 0; no mask but SS; no whole row hidden",
        "the 0 is removed; the contract refuses explicit masks; sequences with queries but no "
        "keys go to the reference",
        refused="packed_rows",
    ),
    Condition(
        _FA,
        "rows that see nothing are handled as such only with inner_precise 2",
        "it is set if rows may be empty, and their output is set to 0",
        refused="- they average all values, as documented",
    ),
    Condition(
        _FA,
        "sink (softmax offset): CANN 8.5 and torch_npu 7.3 and later",
        "goes to the reference",
        refused="- it is emulated",
    ),
    Condition(
        "npu_rms_norm",
        "gamma is float32, or in the input's dtype; the input has 2 to 8 dimensions",
        "gamma is always float32",
        refused="norm_dtype",
    ),
    Condition(
        "npu_rotary_mul",
        "cos and sin must be within [-1, 1], which excludes a scale above 1 (YaRN)",
        "checked once for each tensor",
        refused="- a range of values, which a kernel does not look at",
    ),
    Condition(
        "npu_rotary_mul",
        "cos and sin: [S, 1, 1, D] and similar; for half also with the batch",
        "other shapes go to the reference",
        refused="- torch_npu itself looks at shapes",
    ),
    Condition(
        "npu_swiglu",
        "contiguous and not empty",
        "made contiguous; empty: reference",
        refused="- torch_npu makes it contiguous",
    ),
    Condition(
        "torch.nn.functional.gelu",
        "torch_npu ignores `approximate`: always tanh",
        "npu_gelu, which honours it",
        refused="- it computes tanh, as documented",
    ),
    Condition(
        "npu_scaled_masked_softmax",
        "the mask is bool and must be given; fixed_triu_mask must be False",
        "an all-False mask is made if there is none; rows that see nothing are set to 0",
        refused="softmax_small",
    ),
    Condition(
        "npu_grouped_matmul",
        "group_list: int64, cumulative, on the device; x is not transposed",
        "counts are summed on the device",
        refused="groups_order",
    ),
    Condition(
        "npu_grouped_matmul_add_",
        "operands in float16 or bfloat16, added to float32; x transposed only; experts one behind "
        "the other",
        "checked; else the reference; experts in another order are added from a buffer",
        "CANN, aclnnGroupedMatmulAdd",
        refused="sums_dtype",
    ),
    *(
        Condition(operator, text, kept, refused=refused)
        for operator in ("npu_all_gather_base_mm", "npu_mm_reduce_scatter_base")
        for text, kept, refused in (
            ("float16 or bfloat16, both operands alike", _ELSE_APART, "product_dtype"),
            ("comm_turn is 0", "left at 0", "product_turn"),
            ("no bias but 0", "a bias is added afterwards", "product_bias"),
            (
                "2, 4 or 8 ranks on an Atlas A2",
                _ELSE_APART,
                "- 1 as well; 3, 5, 6 and 7 are refused",
            ),
        )
    ),
    Condition(
        "npu_mm_all_reduce_base",
        "float16 or bfloat16; reduce_op is sum",
        _ELSE_APART,
        refused="product_operation",
    ),
    Condition(
        "all that sum in any order",
        "one result in each run only with torch.use_deterministic_algorithms(True), set before the "
        "first operator; of collectives with HCCL_DETERMINISTIC=true",
        "Megatron's --deterministic-mode sets the first, `env` explains the second",
        "Ascend/pytorch, deterministic_computing_apis",
        "- it sums in one order always",
    ),
    Condition(
        "streams",
        "a tensor that another stream uses must be recorded there (record_stream)",
        "Megatron records them",
        "Ascend/pytorch, MULTI_STREAM_MEMORY_REUSE",
        "- work is done when it is submitted",
    ),
    Condition(
        "memory",
        "blocks are multiples of 512 bytes; large ones begin at multiples of 16 KB where segments "
        "expand",
        "torch_npu allocates",
        "Ascend/pytorch, PYTORCH_NPU_ALLOC_CONF",
        "- torch_npu aligns them",
    ),
)


def dtype_objection(operator: str, *tensors: torch.Tensor) -> str | None:
    """None when every tensor has a dtype the operator computes in."""
    for tensor in tensors:
        if tensor.dtype not in FLOATS:
            return f"{operator}: float16, bfloat16 or float32, not {tensor.dtype}"
    return None


def first_objection(*pairs: tuple[Limit, int]) -> str | None:
    """The first broken limit, or None."""
    return next(
        (found for limit, value in pairs if (found := limit.objection(value)) is not None), None
    )


def rule_rows() -> list[tuple[str, str, str, str, str]]:
    """Operator, rule, how it is obeyed, whether the emulator refuses the call, source."""
    ranges = [
        (row.operator, row.text, "checked; else the reference", _emulated(row.refused), row.source)
        for row in LIMITS
    ]
    others = [
        (row.operator, row.text, row.kept, _emulated(row.refused), row.source) for row in CONDITIONS
    ]
    return ranges + others


def _emulated(refused: str) -> str:
    return f"accepted: {refused[2:]}" if refused.startswith("- ") else "refused"
