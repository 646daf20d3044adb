"""flash-attn's activations, linear layers, attention modules and losses.

GELU is the approximation by tanh. Linear layers that split their weights over ranks are absent, and
so is ``MHA``, with projections and caches.

Legend: ... any leading dimensions (rows), b batch, s sequence, sq and sk lengths of queries and
keys, t tokens of packed sequences, n query heads, g key heads, d head size, v vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.nn import functional

from accel_bridge.errors import BridgeError
from accel_bridge.kernels import CROSS_ENTROPY, SWIGLU, group_size
from accel_bridge.kernels.active import kernel

from ._attention import (
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
)

Tensor = torch.Tensor

gelu_fwd = fast_gelu_impl = partial(functional.gelu, approximate="tanh")


def bias_gelu(y: Tensor, bias: Tensor) -> Tensor:
    """GELU of y [..., h] plus bias [h], in y's dtype."""
    return functional.gelu(y + bias, approximate="tanh").to(y.dtype)


bias_gelu_impl = bias_gelu


def gelu_bwd(g: Tensor, x: Tensor) -> Tensor:
    """Gradient of x, given that of its GELU."""
    found: Tensor = torch.ops.aten.gelu_backward(g, x, approximate="tanh")
    return found.to(x.dtype)


def bias_gelu_back(g: Tensor, y: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of y [rows, h] and bias [h], given that of :func:`bias_gelu`."""
    gradient = gelu_bwd(g, y + bias)
    return gradient.to(y.dtype), gradient.sum(0, dtype=bias.dtype)


def relu_bwd(g: Tensor, x: Tensor) -> Tensor:
    """Gradient of x, given that of its ReLU; at 0 the whole of it."""
    return torch.where(x >= 0, g, 0.0).to(x.dtype)


def sqrelu_fwd(x: Tensor) -> Tensor:
    """The square of ReLU."""
    return functional.relu(x).square()


def sqrelu_bwd(g: Tensor, x: Tensor) -> Tensor:
    """Gradient of x, given that of its squared ReLU."""
    return (2.0 * g * functional.relu(x)).to(x.dtype)


def swiglu(x: Tensor, y: Tensor) -> Tensor:
    """``silu(x) * y``, rounded once."""
    return kernel(SWIGLU)(torch.cat((x, y), -1))


class SwiGLUFunction:
    """:func:`swiglu`, called as a ``torch.autograd.Function``."""

    @staticmethod
    def apply(*args: Any) -> Tensor:
        """As :func:`swiglu`."""
        return swiglu(*args)


_ACTIVATIONS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "gelu_approx": gelu_fwd,
    "relu": functional.relu,
    "sqrelu": sqrelu_fwd,
}


def fused_dense_func(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    return_residual: bool = False,
    process_group: dist.ProcessGroup | None = None,
    sequence_parallel: bool = True,
) -> Any:
    """``x @ weight.T + bias``, [..., out]; with ``return_residual`` also x.

    :raises BridgeError: a process group.
    """
    _alone(process_group)
    gemm = functional.linear(x, weight, bias)
    return (gemm, x) if return_residual else gemm


def fused_mlp_func(
    x: Tensor,
    weight1: Tensor,
    weight2: Tensor,
    bias1: Tensor | None = None,
    bias2: Tensor | None = None,
    activation: str = "gelu_approx",
    save_pre_act: bool = True,
    return_residual: bool = False,
    checkpoint_lvl: int = 0,
    heuristic: int = 0,
    process_group: dist.ProcessGroup | None = None,
    sequence_parallel: bool = True,
) -> Any:
    """Two linear layers with an activation between; with ``return_residual`` also x.

    :param activation: ``gelu_approx``, ``relu`` or ``sqrelu``.
    :param save_pre_act: of the real library's memory, as ``checkpoint_lvl`` and ``heuristic``.
    :raises BridgeError: a process group.
    """
    _alone(process_group)
    hidden = _ACTIVATIONS[activation](functional.linear(x, weight1, bias1))
    gemm = functional.linear(hidden, weight2, bias2)
    return (gemm, x) if return_residual else gemm


def _alone(process_group: dist.ProcessGroup | None) -> None:
    if process_group is not None:
        raise BridgeError(
            "flash_attn.ops.fused_dense does not split weights over ranks here.",
            evidence="a process_group was given",
            next="use Megatron's ColumnParallelLinear and RowParallelLinear",
        )


class FusedDense(torch.nn.Linear):
    """A linear layer that may return its input too."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        return_residual: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, out_features, bias=bias, device=device, dtype=dtype)
        self.return_residual = return_residual

    def forward(self, x: Tensor, process_group: dist.ProcessGroup | None = None) -> Any:
        """As :func:`fused_dense_func`."""
        return fused_dense_func(x, self.weight, self.bias, self.return_residual, process_group)


class FusedMLP(torch.nn.Module):
    """:func:`fused_mlp_func` with its layers ``fc1`` and ``fc2``."""

    def __init__(
        self,
        in_features: int,
        hidden_features: int | None = None,
        out_features: int | None = None,
        bias1: bool = True,
        bias2: bool = True,
        activation: str = "gelu_approx",
        return_residual: bool = False,
        checkpoint_lvl: int = 0,
        heuristic: str | int = "auto",
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        assert checkpoint_lvl in (0, 1, 2)
        assert activation in _ACTIVATIONS
        super().__init__()
        hidden = hidden_features or in_features * 4
        form: Any = {"device": device, "dtype": dtype}
        self.activation = activation
        self.return_residual = return_residual
        self.checkpoint_lvl = checkpoint_lvl
        self.heuristic = heuristic if activation != "sqrelu" else -1
        self.fc1 = torch.nn.Linear(in_features, hidden, bias=bias1, **form)
        self.fc2 = torch.nn.Linear(hidden, out_features or in_features, bias=bias2, **form)

    def forward(self, x: Tensor, process_group: dist.ProcessGroup | None = None) -> Any:
        """[..., in] -> [..., out]."""
        return fused_mlp_func(
            x,
            self.fc1.weight,
            self.fc2.weight,
            self.fc1.bias,
            self.fc2.bias,
            self.activation,
            return_residual=self.return_residual,
            process_group=process_group,
        )


Activation = Callable[[torch.Tensor], torch.Tensor]


class Mlp(torch.nn.Module):
    """Two linear layers with an activation between; ``return_residual``: also the input."""

    def __init__(
        self,
        in_features: int,
        hidden_features: int | None = None,
        out_features: int | None = None,
        activation: Activation = functional.gelu,
        bias1: bool = True,
        bias2: bool = True,
        return_residual: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        hidden = in_features * 4 if hidden_features is None else hidden_features
        out = in_features if out_features is None else out_features
        self.return_residual = return_residual
        self.fc1 = torch.nn.Linear(in_features, hidden, bias=bias1, device=device, dtype=dtype)
        self.activation = activation
        self.fc2 = torch.nn.Linear(hidden, out, bias=bias2, device=device, dtype=dtype)

    def forward(self, x: torch.Tensor) -> Any:
        """[..., in] -> [..., out]."""
        y = self.fc2(self.activation(self.fc1(x)))
        return (y, x) if self.return_residual else y


class GatedMlp(torch.nn.Module):
    """``fc2(y * activation(gate))``, [y, gate] = fc1(x).

    :param hidden_features: default 8 / 3 of the input's; made a multiple of ``multiple_of``.
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int | None = None,
        out_features: int | None = None,
        activation: Activation = functional.sigmoid,
        bias1: bool = True,
        bias2: bool = True,
        multiple_of: int = 128,
        return_residual: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        hidden = int(8 * in_features / 3) if hidden_features is None else hidden_features
        hidden = -(-hidden // multiple_of) * multiple_of
        out = in_features if out_features is None else out_features
        self.return_residual = return_residual
        self.fc1 = torch.nn.Linear(in_features, 2 * hidden, bias=bias1, device=device, dtype=dtype)
        self.activation = activation
        self.fc2 = torch.nn.Linear(hidden, out, bias=bias2, device=device, dtype=dtype)

    def forward(self, x: torch.Tensor) -> Any:
        """[..., in] -> [..., out]."""
        y, gate = self.fc1(x).chunk(2, dim=-1)
        fused = self.activation is functional.silu
        y = self.fc2(swiglu(gate, y) if fused else y * self.activation(gate))
        return (y, x) if self.return_residual else y


def get_alibi_slopes(nheads: int) -> list[float]:
    """ALiBi's slopes: 2^(-8 i / n), and for other numbers than powers of 2 those between, too."""
    power = 1 << (nheads.bit_length() - 1)
    slopes = [2.0 ** (-8.0 * (one + 1) / power) for one in range(power)]
    between = [2.0 ** (-4.0 * (2 * one + 1) / power) for one in range(nheads - power)]
    return slopes + between


class _Flash(torch.nn.Module):
    """Options of FlashAttention; an ``attention_dropout`` counts in training only."""

    alibi_slopes: Tensor | None

    def __init__(
        self,
        causal: bool,
        softmax_scale: float | None,
        attention_dropout: float,
        window_size: tuple[int, int],
        alibi_slopes: Tensor | None,
        deterministic: bool,
    ) -> None:
        super().__init__()
        self.causal = causal
        self.softmax_scale = softmax_scale
        self.drop = torch.nn.Dropout(attention_dropout)
        self.register_buffer("alibi_slopes", alibi_slopes, persistent=False)
        self.window_size = window_size
        self.deterministic = deterministic

    def _options(self, causal: bool | None) -> dict[str, Any]:
        slopes = self.alibi_slopes
        return {
            "dropout_p": self.drop.p if self.training else 0.0,
            "softmax_scale": self.softmax_scale,
            "causal": self.causal if causal is None else causal,
            "alibi_slopes": None if slopes is None else slopes.float(),
            "window_size": self.window_size,
            "deterministic": self.deterministic,
        }


class FlashSelfAttention(_Flash):
    """:func:`flash_attn_qkvpacked_func` as a module."""

    def __init__(
        self,
        causal: bool = False,
        softmax_scale: float | None = None,
        attention_dropout: float = 0.0,
        window_size: tuple[int, int] = (-1, -1),
        alibi_slopes: Tensor | None = None,
        deterministic: bool = False,
    ) -> None:
        super().__init__(
            causal, softmax_scale, attention_dropout, window_size, alibi_slopes, deterministic
        )

    def forward(
        self,
        qkv: Tensor,
        causal: bool | None = None,
        cu_seqlens: Tensor | None = None,
        max_seqlen: int | None = None,
    ) -> Any:
        """qkv [b, s, 3, n, d], or [t, 3, n, d] with ``cu_seqlens`` -> without the 3."""
        options = self._options(causal)
        if cu_seqlens is None:
            return flash_attn_qkvpacked_func(qkv, **options)
        assert max_seqlen is not None
        return flash_attn_varlen_qkvpacked_func(qkv, cu_seqlens, max_seqlen, **options)


class FlashCrossAttention(_Flash):
    """:func:`flash_attn_kvpacked_func` as a module."""

    def __init__(
        self,
        causal: bool = False,
        softmax_scale: float | None = None,
        attention_dropout: float = 0.0,
        alibi_slopes: Tensor | None = None,
        window_size: tuple[int, int] = (-1, -1),
        deterministic: bool = False,
    ) -> None:
        super().__init__(
            causal, softmax_scale, attention_dropout, window_size, alibi_slopes, deterministic
        )

    def forward(
        self,
        q: Tensor,
        kv: Tensor,
        causal: bool | None = None,
        cu_seqlens: Tensor | None = None,
        max_seqlen: int | None = None,
        cu_seqlens_k: Tensor | None = None,
        max_seqlen_k: int | None = None,
    ) -> Any:
        """q [b, sq, n, d], kv [b, sk, 2, g, d], or packed ones -> as q."""
        options = self._options(causal)
        if cu_seqlens is None:
            return flash_attn_kvpacked_func(q, kv, **options)
        assert cu_seqlens_k is not None
        assert max_seqlen is not None
        assert max_seqlen_k is not None
        return flash_attn_varlen_kvpacked_func(
            q, kv, cu_seqlens, cu_seqlens_k, max_seqlen, max_seqlen_k, **options
        )


class CrossAttention(torch.nn.Module):
    """Attention by its formula; hidden scores are about -10000, not minus infinity."""

    def __init__(
        self,
        causal: bool = False,
        softmax_scale: float | None = None,
        attention_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.causal = causal
        self.softmax_scale = softmax_scale
        self.drop = torch.nn.Dropout(attention_dropout)

    def forward(
        self,
        q: Tensor,
        kv: Tensor,
        causal: bool | None = None,
        key_padding_mask: Tensor | None = None,
    ) -> Tensor:
        """q [b, sq, n, d], kv [b, sk, 2, g, d] -> as q.

        :param key_padding_mask: bool [b, sk], True for keys that are seen; a causal mask then ends
            at the last of them.
        """
        length = None if key_padding_mask is None else key_padding_mask.sum(-1)
        return self._attend(q, kv, causal, key_padding_mask, length)

    def _attend(
        self,
        q: Tensor,
        kv: Tensor,
        causal: bool | None,
        seen: Tensor | None,
        length: Tensor | None,
    ) -> Tensor:
        """The formula; a causal mask ends at the keys' ``length`` [b], None for all."""
        k, v = (one.repeat_interleave(q.shape[2] // kv.shape[3], 2) for one in kv.unbind(2))
        scale = self.softmax_scale or q.shape[-1] ** -0.5
        scores = torch.einsum("bqnd,bknd->bnqk", q, k * scale)
        if seen is not None:
            scores = scores + (~seen[:, None, None]).to(scores.dtype) * -10000.0
        if self.causal if causal is None else causal:
            sq, sk = scores.shape[-2:]
            row, column = (torch.arange(one, device=q.device) for one in (sq, sk))
            last = row[:, None] - sq + (sk if length is None else length[:, None, None, None])
            scores = scores.masked_fill(column > last, -10000.0)
        weights = torch.softmax(scores, dim=-1, dtype=v.dtype)
        return torch.einsum("bnqk,bknd->bqnd", self.drop(weights), v)


class SelfAttention(CrossAttention):
    """:class:`CrossAttention` of packed queries, keys and values."""

    def forward(  # type: ignore[override]
        self, qkv: Tensor, causal: bool | None = None, key_padding_mask: Tensor | None = None
    ) -> Tensor:
        """qkv [b, s, 3, n, d] -> [b, s, n, d]; a causal mask does not depend on the padding."""
        return self._attend(qkv[:, :, 0], qkv[:, :, 1:], causal, key_padding_mask, None)


def cross_entropy_loss(
    logits: torch.Tensor,
    labels: torch.Tensor,
    precomputed_lse: torch.Tensor | None = None,
    label_smoothing: float = 0.0,
    logit_scale: float = 1.0,
    lse_square_scale: float = 0.0,
    ignore_index: int = -100,
    inplace_backward: bool = False,
    process_group: dist.ProcessGroup | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss of every row, and the part of it that is ``lse_square_scale * lse ** 2``.

    :param logits: [rows, v], or this rank's part of the vocabulary with ``process_group``.
    :param labels: int64 [rows]; rows of ``ignore_index`` lose nothing.
    :param inplace_backward: a hint to save memory; the result is the same.
    :returns: float32 [rows], twice.
    :raises BridgeError: a squared log-sum-exp over a split vocabulary.
    """
    ranks = group_size(process_group)
    if lse_square_scale and ranks > 1:
        raise BridgeError(
            "A loss on the squared log-sum-exp cannot be combined with a split vocabulary.",
            evidence=f"lse_square_scale {lse_square_scale}, {ranks} ranks",
            next="use lse_square_scale=0.0",
        )
    ignored = labels == ignore_index
    scaled = logits if logit_scale == 1.0 else logits * logit_scale
    vocabulary = logits.shape[-1] * ranks
    # The contract gives every wrong class an equal share; flash-attn counts the right one too.
    smoothing = label_smoothing * (vocabulary - 1) / vocabulary
    losses = kernel(CROSS_ENTROPY)(
        scaled,
        labels.masked_fill(ignored, 0),
        group=process_group if ranks > 1 else None,
        label_smoothing=smoothing,
    ).float()
    squares = torch.zeros_like(losses)
    if lse_square_scale:
        lse = precomputed_lse
        lse = scaled.float().logsumexp(-1) if lse is None else lse
        squares = lse_square_scale * lse.square()
    squares = squares.masked_fill(ignored, 0.0)
    return losses.masked_fill(ignored, 0.0) + squares, squares.detach()


class CrossEntropyLoss(torch.nn.Module):
    """Cross-entropy of rows, reduced.

    :param ignore_index: rows of this label lose nothing, and do not count in the mean.
    :param reduction: ``mean``, ``sum`` or ``none``.
    :param return_z_loss: also return the part that is ``lse_square_scale * lse ** 2``. The other
        parameters are those of :func:`cross_entropy_loss`.
    :raises NotImplementedError: another reduction.
    """

    def __init__(
        self,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        logit_scale: float = 1.0,
        lse_square_scale: float = 0.0,
        inplace_backward: bool = False,
        process_group: dist.ProcessGroup | None = None,
        return_z_loss: bool = False,
    ) -> None:
        super().__init__()
        if reduction not in ("mean", "none", "sum"):
            raise NotImplementedError("Only support reduction = 'mean' or 'none' or 'sum'")
        self.ignore_index = ignore_index
        self.reduction = reduction
        self.label_smoothing = label_smoothing
        self.logit_scale = logit_scale
        self.lse_square_scale = lse_square_scale
        self.inplace_backward = inplace_backward
        self.process_group = process_group
        self.return_z_loss = return_z_loss

    def forward(
        self,
        input: torch.Tensor,
        target: torch.Tensor,
        precomputed_lse: torch.Tensor | None = None,
    ) -> Any:
        """Loss of input [rows, v] and labels [rows]: float32 [rows] or a scalar."""
        parts = cross_entropy_loss(
            input,
            target,
            precomputed_lse,
            self.label_smoothing,
            self.logit_scale,
            self.lse_square_scale,
            self.ignore_index,
            self.inplace_backward,
            self.process_group,
        )
        if self.reduction != "none":
            count = (target != self.ignore_index).sum() if self.reduction == "mean" else 1
            parts = parts[0].sum() / count, parts[1].sum() / count
        return parts if self.return_z_loss else parts[0]
