"""The CUDA backend's kernels: torch's own and Triton's, with nothing to compile by hand.

A kernel is one file: its Triton code, the wrapper that follows the contract's signature, and
``supports``, which says where it applies. It is named here, and imported by its first call.
"""

from __future__ import annotations

from typing import Any, Final

from accel_bridge.backends.cuda.kernels import attention, grouped_matmul, optimizer, weight_gradient
from accel_bridge.backends.cuda.kernels._choice import missing, without_descriptors
from accel_bridge.kernels import (
    ATTENTION_MAX_LOGIT,
    BIAS_DROPOUT_ADD,
    BIAS_GELU,
    CAUSAL_CONVOLUTION,
    CROSS_ENTROPY,
    EMBEDDING_GRADIENT,
    FLOAT8_BLOCK_QUANTIZE,
    FLOAT8_CURRENT_QUANTIZE,
    FLOAT8_QUANTIZE,
    GATED_ACTIVATION,
    GATED_DELTA_RULE,
    GEGLU,
    GROUPED_FLOAT8_BLOCK_TRANSPOSE,
    GROUPED_FLOAT8_QUANTIZE,
    GROUPED_SCALED_MATMUL,
    GROUPED_SCALED_WEIGHT_GRADIENT,
    GROUPED_WEIGHT_GRADIENT,
    LAYER_NORM,
    LINEAR_CROSS_ENTROPY,
    NORM_BACKWARD,
    NORM_FORWARD,
    RMS_NORM,
    ROTARY,
    SCALED_MATMUL,
    STATE_SPACE_SCAN,
    SWIGLU,
    TOKEN_PERMUTE,
    TOKEN_UNPERMUTE,
    Contract,
    Kernel,
    Kernels,
    reference_kernel,
    supports_every_call,
)

_TRITON: Final = "accel_bridge, in Triton"
_BOTH: Final = "torch and accel_bridge"


def _triton(
    contract: Contract[Any, Any],
    module: str,
    why: str,
    function: str = "",
    supports: str = "supports",
    source: str = _TRITON,
    choices: str = "",
) -> Kernel[Any, Any]:
    """The kernel ``module:function`` (by default, the contract's name), or the reference.

    The reference serves where Triton is missing or, for GROUPED_SCALED_MATMUL, too old.
    """
    reason = missing()
    if reason is None and contract is GROUPED_SCALED_MATMUL:
        reason = without_descriptors()
    if reason is not None:
        return reference_kernel(contract, reason)
    here = f"{__name__}.{module}:"
    where = here + supports if supports else supports_every_call
    called = here + (function or contract.name)
    return contract.kernel(called, why, where, source, here + choices if choices else None)


KERNELS: Final = Kernels(
    *attention.KERNELS,
    *grouped_matmul.KERNELS,
    *optimizer.KERNELS,
    *weight_gradient.KERNELS,
    reference_kernel(STATE_SPACE_SCAN, "its chunks are batched GEMMs, in the tensors' dtype"),
    reference_kernel(GATED_DELTA_RULE, "its chunks are batched GEMMs, in the tensors' dtype"),
    _triton(ATTENTION_MAX_LOGIT, "max_logit", "no score matrix", "max_logit"),
    *(
        _triton(
            contract,
            "norms",
            "torch's kernel for small inputs, Triton's for large ones",
            supports="",
            source=_BOTH,
            choices="examples",
        )
        for contract in (LAYER_NORM, RMS_NORM)
    ),
    *(
        _triton(
            contract,
            "norms",
            "one pass, with statistics; torch's kernel for small inputs",
            supports=supports,
            source=_BOTH,
        )
        for contract, supports in (
            (NORM_FORWARD, "forward_supports"),
            (NORM_BACKWARD, "backward_supports"),
        )
    ),
    _triton(ROTARY, "rotary", "one pass; Megatron's own is six"),
    _triton(SWIGLU, "gated", "one pass each way"),
    _triton(GEGLU, "gated", "one pass each way"),
    _triton(GATED_ACTIVATION, "gated", "one pass each way, gradients of the weights included"),
    _triton(BIAS_GELU, "bias_gelu", "one pass each way"),
    _triton(
        BIAS_DROPOUT_ADD,
        "bias_dropout_add",
        "one pass each way; the mask is regenerated instead of stored",
    ),
    _triton(
        CROSS_ENTROPY,
        "cross_entropy",
        "two passes over the logits and no copy of them in float32",
    ),
    _triton(
        LINEAR_CROSS_ENTROPY,
        "linear_cross_entropy",
        "no logits of all tokens; no GEMM is computed twice",
        source=_BOTH,
    ),
    _triton(
        EMBEDDING_GRADIENT,
        "embedding_gradient",
        "adds only to the rows that were used, in a fixed order",
    ),
    _triton(
        CAUSAL_CONVOLUTION,
        "causal_convolution",
        "one pass each way, no float32 copy of the input",
    ),
    _triton(
        TOKEN_PERMUTE,
        "token_permute",
        "every token is read once, every copy written once",
        supports="permute_supports",
    ),
    _triton(
        TOKEN_UNPERMUTE,
        "token_permute",
        "sums in float32 and in a fixed order; every copy is read once",
        supports="unpermute_supports",
    ),
    _triton(GROUPED_WEIGHT_GRADIENT, "grouped_weight_gradient", "every expert in one launch"),
    _triton(FLOAT8_QUANTIZE, "float8", "one pass, largest magnitude and transpose included"),
    _triton(
        FLOAT8_CURRENT_QUANTIZE,
        "float8",
        "two passes: the largest magnitude; the numbers and their transpose",
    ),
    _triton(FLOAT8_BLOCK_QUANTIZE, "float8", "one pass"),
    _triton(
        SCALED_MATMUL,
        "scaled_matmul",
        "cuBLAS's FP8 GEMM; Triton where its rules exclude a shape",
        source="torch._scaled_mm",
    ),
    _triton(
        GROUPED_FLOAT8_QUANTIZE,
        "grouped_float8",
        "every expert in two launches: the largest magnitudes; the numbers and their transposes",
    ),
    _triton(GROUPED_FLOAT8_BLOCK_TRANSPOSE, "grouped_float8", "every expert in one launch"),
    _triton(
        GROUPED_SCALED_MATMUL,
        "grouped_scaled_matmul",
        "every expert in one launch, or cuBLAS",
        source=_BOTH,
    ),
    _triton(
        GROUPED_SCALED_WEIGHT_GRADIENT,
        "grouped_scaled_matmul",
        "every expert in one launch, or cuBLAS; added to float32 sums",
        supports="gradient_supports",
        source=_BOTH,
    ),
)
