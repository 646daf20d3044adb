"""The operators of torch's samples that, together, reach the rows of the emulator's tables."""

from __future__ import annotations

#: torch_npu's own code fails for these, before it comes to an operator: samples without elements.
NOT_EMPTY = ("matmul",)
OPERATORS = (
    # one element of the result for each of the input
    *"abs acos acosh add addcdiv addcmul asin asinh atan atan2 atanh bitwise_and".split(),
    *"bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor ceil clamp".split(),
    *"clamp_max clamp_min copysign cos cosh div_floor_rounding div_no_rounding_mode".split(),
    *"div_trunc_rounding eq erf erfc erfinv exp exp2 expm1 floor floor_divide fmod frac".split(),
    *"ge gt isclose isfinite isinf isneginf isposinf le lerp log log10 log1p log2".split(),
    *"logaddexp logaddexp2 logical_and logical_not logical_or logical_xor lt".split(),
    *"masked_fill maximum minimum mul nan_to_num ne neg pow reciprocal remainder".split(),
    *"round round_decimals_3 rsqrt rsub sigmoid sign signbit sin sinh sqrt sub tan".split(),
    *"tanh trunc where".split(),
    # fewer elements, and running sums
    *"all amax amin aminmax any argmax argmin bincount count_nonzero cummax cummin".split(),
    *"cumprod cumsum equal histc kthvalue logsumexp max_reduction_no_dim".split(),
    *"max_reduction_with_dim mean median min_reduction_no_dim min_reduction_with_dim".split(),
    *"prod searchsorted sort std std_mean std_unbiased sum topk trace".split(),
    *"unique var var_mean".split(),
    # GEMMs
    *"addmm addmv addr baddbmm bmm dot einsum matmul mm mv outer".split(),
    *"nn.functional.linear".split(),
    # shapes and indices
    *"arange cat column_stack constant_pad_nd diag diag_embed diagonal_scatter eye".split(),
    *"flip gather index_add index_put index_select linspace".split(),
    *"masked_scatter masked_select narrow nonzero repeat repeat_interleave roll scatter".split(),
    *"scatter_add select_scatter slice_scatter split stack take_along_dim tril triu".split(),
    *"__getitem__ tile unbind".split(),
    # layers
    *"nn.functional.embedding nn.functional.glu".split(),
    *"nn.functional.hardtanh nn.functional.layer_norm nn.functional.leaky_relu".split(),
    *"nn.functional.relu nn.functional.rms_norm nn.functional.silu".split(),
    *"nn.functional.softplus nn.functional.threshold softmax log_softmax".split(),
    # losses
    *"nn.functional.binary_cross_entropy nn.functional.cross_entropy".split(),
    *"nn.functional.kl_div nn.functional.l1_loss nn.functional.mse_loss".split(),
    *"nn.functional.nll_loss nn.functional.smooth_l1_loss".split(),
)
