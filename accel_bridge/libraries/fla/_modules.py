"""The causal convolution of channels-last sequences, gated norms, vectors of length one.

Legend: ... any leading dimensions, b batch, t tokens, d channels, w width, h hidden size, n packed
sequences (then b is 1).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, Final, cast

import torch
from torch.nn import functional

from accel_bridge.kernels import CAUSAL_CONVOLUTION, compute_dtype, convolution_state
from accel_bridge.kernels.active import kernel


def sequence_ids(cu_seqlens: torch.Tensor, length: int) -> torch.Tensor:
    """[1, t]: the number of every token's sequence, without waiting for the device.

    :param cu_seqlens: [n + 1], rising from 0 to at most t; tokens behind the last have number n.
    """
    begins = torch.zeros(length + 1, dtype=torch.int32, device=cu_seqlens.device)
    ones = torch.ones_like(cu_seqlens[1:], dtype=torch.int32)
    # Sequences without tokens begin where the next one does.
    return begins.index_add(0, cu_seqlens[1:].long(), ones)[:-1].cumsum(0).unsqueeze(0)


def each_sequence(cu_seqlens: torch.Tensor) -> Iterator[slice]:
    """Where every sequence stands; waits for the device."""
    ends = cast(list[int], cu_seqlens.tolist())
    return (slice(*pair) for pair in pairwise(ends))


def side_by_side(outputs: list[torch.Tensor], length: int) -> torch.Tensor:
    """The sequences' outputs as [1, t, ...]; zeros for tokens that lie behind the last one."""
    output = torch.cat(outputs, 1)
    missing = length - output.shape[1]
    return functional.pad(output, (0, 0) * (output.dim() - 2) + (0, missing)) if missing else output


def check_packed(
    tokens: torch.Tensor, cu_seqlens: torch.Tensor | None, initial_state: torch.Tensor | None
) -> None:
    """:raises ValueError: more than one row of packed tokens, or too few or many states."""
    if cu_seqlens is None:
        return
    if tokens.shape[0] != 1:
        raise ValueError(
            f"The batch size is expected to be 1 rather than {tokens.shape[0]} when using "
            f"`cu_seqlens`. Please flatten variable-length inputs before processing."
        )
    if initial_state is not None and initial_state.shape[0] != len(cu_seqlens) - 1:
        raise ValueError(
            f"The number of initial states is expected to be equal to the number of input "
            f"sequences, i.e., {len(cu_seqlens) - 1} rather than {initial_state.shape[0]}."
        )


def is_v_first(state_v_first: bool, options: dict[str, Any]) -> bool:
    """Whether states are [.., d, k], by its name of today or its former one.

    :raises ValueError: both are given.
    """
    if "transpose_state_layout" not in options:
        return state_v_first
    if state_v_first:
        raise ValueError(
            "Cannot pass both `state_v_first` and the deprecated `transpose_state_layout`."
        )
    warnings.warn(
        "`transpose_state_layout` is deprecated and renamed to `state_v_first`.",
        DeprecationWarning,
        stacklevel=3,
    )
    return bool(options["transpose_state_layout"])


def causal_conv1d(
    x: torch.Tensor,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool | None = False,
    activation: str | None = None,
    backend: str | None = "triton",
    cu_seqlens: torch.Tensor | None = None,
    cu_seqlens_cpu: torch.Tensor | None = None,
    chunk_indices: torch.Tensor | None = None,
    cp_context: Any = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The contract ``causal_convolution``.

    :param x: [b, t, d]; b is 1 with ``cu_seqlens``.
    :param weight: [d, w].
    :param bias: [d].
    :param residual: like ``x``, added at the end.
    :param initial_state: [b, d, w] or [n, d, w], the inputs that came before.
    :param output_final_state: also return the inputs that the tokens that follow need.
    :param activation: None, ``silu`` or ``swish``.
    :param backend: of the real library; the bridge's backend serves all of them.
    :param cu_seqlens: [n + 1], where packed sequences begin.
    :param cu_seqlens_cpu: the same on the host; not needed here, nor is ``chunk_indices``.
    :param cp_context: not served.
    :returns: like ``x``, and the state or None.
    :raises NotImplementedError: context parallel.
    :raises ValueError: another backend; more than one row of packed tokens.
    """
    refuse_context_parallel(cp_context)
    if backend not in ("triton", "cuda", "mix"):
        raise ValueError(f"Unsupported backend: {backend}")
    if activation not in (None, "silu", "swish"):
        raise ValueError(f"activation must be None, silu or swish, not {activation}")
    assert weight is not None
    shape = x.shape
    x = x.flatten(2)  # heads, if there are any
    check_packed(x, cu_seqlens, initial_state)
    convolve = kernel(CAUSAL_CONVOLUTION)
    silu, width = activation is not None, weight.shape[1]
    channels, final = x.transpose(1, 2), None
    if cu_seqlens is None:
        past = None if initial_state is None else initial_state[..., 1:]
        output = convolve(channels, weight, bias, silu=silu, initial_state=past)
        if output_final_state:
            final = convolution_state(channels, width + 1, initial_state)
    elif initial_state is None and not output_final_state:
        ids = sequence_ids(cu_seqlens, x.shape[1])
        output = convolve(channels, weight, bias, silu=silu, sequence_ids=ids)
    else:
        if initial_state is None:
            initial_state = x.new_zeros(len(cu_seqlens) - 1, x.shape[2], width)
        packed, ids, places, ends = _with_states(x, initial_state, cu_seqlens)
        output = convolve(packed, weight, bias, silu=silu, sequence_ids=ids)[..., places]
        if output_final_state:
            last = ends.unsqueeze(1) + torch.arange(-width, 0, device=x.device)
            final = packed[0][:, last].transpose(0, 1)
    output = output.transpose(1, 2).contiguous().view(shape)
    output = output if residual is None else output + residual
    return output, None if final is None else final.contiguous()


def _with_states(
    x: torch.Tensor, states: torch.Tensor, cu_seqlens: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Packed sequences, each behind its state, without waiting for the device.

    :param x: [1, t, d].
    :param states: [n, d, w].
    :returns: [1, d, t + n w]; the number of every position's sequence; where the tokens are in it,
        [t]; where each sequence ends, [n].
    """
    count, _, width = states.shape
    number = torch.arange(count, device=x.device)
    ids = sequence_ids(cu_seqlens, x.shape[1])[0].long()
    # What lies behind the last sequence has no state of its own before it.
    behind = (ids + 1).clamp(max=count)
    places = torch.arange(x.shape[1], device=x.device) + behind * width
    begins = cu_seqlens[:-1] + number * width
    before = begins.unsqueeze(1) + torch.arange(width, device=x.device)
    rows = torch.cat((states.transpose(1, 2).flatten(0, 1).to(x.dtype), x[0]))
    order = torch.cat((before.flatten(), places)).argsort()
    numbers = torch.cat((number.repeat_interleave(width), ids))
    ends = cu_seqlens[1:] + (number + 1) * width
    return rows[order].t().unsqueeze(0), numbers[order].unsqueeze(0), places, ends


@torch.no_grad()
def causal_conv1d_update(
    x: torch.Tensor,
    cache: torch.Tensor,
    residual: torch.Tensor | None = None,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token after those in ``cache``, which moves on in place.

    :param x: [b, d], [1, b, d] or [b, 1, d].
    :param cache: [b, d, w].
    :param residual: like ``x``, added at the end.
    :param weight: [d, w].
    :param bias: [d].
    :param activation: None, ``silu`` or ``swish``.
    :returns: like ``x``, and the cache.
    """
    assert weight is not None
    token = x.reshape(-1, 1, weight.shape[0])
    output, state = causal_conv1d(
        token,
        weight,
        bias,
        initial_state=cache,
        output_final_state=True,
        activation=activation,
    )
    assert state is not None
    cache.copy_(state)
    output = output.reshape(x.shape)
    return (output if residual is None else output + residual), cache


def refuse_context_parallel(cp_context: Any) -> None:
    """:raises NotImplementedError: there is a context."""
    if cp_context is not None:
        raise NotImplementedError(
            "accel_bridge's shim for fla has no context parallel of its own\n"
            "  evidence: cp_context was given; fla.ops.cp is absent\n"
            "  next:     leave cp_context out, or install the real flash-linear-attention"
        )


class ShortConvolution(torch.nn.Conv1d):
    """A causal convolution of each channel by itself, with weights [d, 1, w].

    :param hidden_size: d.
    :param kernel_size: w.
    :param activation: None, ``silu`` or ``swish``.
    :param backend: of the real library; the bridge's backend serves both.
    :raises ValueError: another activation or backend.
    """

    def __init__(
        self,
        hidden_size: int,
        kernel_size: int,
        bias: bool = False,
        activation: str | None = "silu",
        backend: str | None = "triton",
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        **kwargs: Any,
    ) -> None:
        if activation not in (None, "silu", "swish"):
            raise ValueError(f"activation must be None, silu or swish, not {activation}")
        if backend not in ("cuda", "triton"):
            raise ValueError(f"Invalid backend: {backend}, must be one of ['cuda', 'triton']")
        super().__init__(
            hidden_size,
            hidden_size,
            kernel_size,
            groups=hidden_size,
            bias=bias,
            padding=kernel_size - 1,
            device=device,
            dtype=dtype,
        )
        self.hidden_size = hidden_size
        self.activation = activation
        self.backend = backend

    def forward(  # type: ignore[override]
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
        cache: torch.Tensor | None = None,
        output_final_state: bool = False,
        cu_seqlens: torch.Tensor | None = None,
        chunk_indices: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The convolution, and the inputs that the next tokens need.

        :param x: [b, t, d]; b is 1 with ``cu_seqlens``.
        :param residual: like ``x``, added at the end.
        :param mask: [b, t], zero where a token is padding.
        :param cache: [n, d, w], the inputs before; one token after them moves it on in place.
        :param output_final_state: whether to return the inputs that follow, else None.
        :param cu_seqlens: [n + 1], where packed sequences begin.
        :param chunk_indices: of the real library's kernel.
        :returns: like ``x``, and [n, d, w] or None.
        :raises ValueError: a mask for packed sequences.
        """
        if mask is not None:
            if cu_seqlens is not None:
                raise ValueError("`mask` and `cu_seqlens` cannot be provided at the same time")
            x = x * mask.unsqueeze(-1).to(x.dtype)
        weight = self.weight.squeeze(1)
        sequences = x.shape[0] if cu_seqlens is None else len(cu_seqlens) - 1
        if x.shape[0] * x.shape[1] == sequences and cache is not None:
            return self.step(x, residual, cache, output_final_state, cu_seqlens)
        return causal_conv1d(
            x,
            weight,
            self.bias,
            residual,
            cache,
            output_final_state,
            self.activation,
            cu_seqlens=cu_seqlens,
            **kwargs,
        )

    def step(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        cache: torch.Tensor | None,
        output_final_state: bool = False,
        cu_seqlens: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """One token of every sequence, x [n, 1, d], or [1, n, d] with ``cu_seqlens``.

        :param cache: as in :meth:`forward`; None for zeros.
        """
        if cache is None:
            sequences = x.shape[0] * x.shape[1]
            cache = x.new_zeros(sequences, self.hidden_size, int(self.kernel_size[0]))
        output, cache = causal_conv1d_update(
            x, cache, residual, self.weight.squeeze(1), self.bias, self.activation
        )
        return output, (cache if output_final_state else None)

    @property
    def state_size(self) -> int:
        """Values that one sequence keeps."""
        return self.hidden_size * int(self.kernel_size[0])


Result = torch.Tensor | tuple[torch.Tensor, torch.Tensor]


def rms_norm_gated(
    x: torch.Tensor,
    g: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    activation: str = "swish",
    residual: torch.Tensor | None = None,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    eps: float = 1e-6,
) -> Result:
    """``norm(x + residual) * activation(g)``, in float32, rounded once at the end.

    :param x: [..., h].
    :param g: like ``x``.
    :param weight: [h], ones if None.
    :param bias: [h].
    :param activation: ``swish``, ``silu`` or ``sigmoid``.
    :param residual: like ``x``.
    :param prenorm: also return the sum that was normalised.
    :param residual_in_fp32: the dtype of that sum, where there is no ``residual``.
    :returns: like ``x``; with ``prenorm`` a pair.
    :raises ValueError: another activation.
    """
    return _gated(
        x, g, weight, bias, activation, residual, prenorm, residual_in_fp32, eps, centred=False
    )


def layer_norm_gated(
    x: torch.Tensor,
    g: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    activation: str = "swish",
    residual: torch.Tensor | None = None,
    prenorm: bool = False,
    residual_in_fp32: bool = False,
    eps: float = 1e-6,
) -> Result:
    """:func:`rms_norm_gated` with the mean taken off first."""
    return _gated(
        x, g, weight, bias, activation, residual, prenorm, residual_in_fp32, eps, centred=True
    )


def _gated(
    x: torch.Tensor,
    g: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    activation: str,
    residual: torch.Tensor | None,
    prenorm: bool,
    residual_in_fp32: bool,
    eps: float,
    *,
    centred: bool,
) -> Result:
    _check(activation)
    dtype = compute_dtype(x)
    total = x.to(dtype)
    if residual is not None:
        total = total + residual.to(dtype)
    wide = total - total.mean(-1, keepdim=True) if centred else total
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    if weight is not None:
        wide = wide * weight.to(dtype)
    if bias is not None:
        wide = wide + bias.to(dtype)
    gate = g.to(dtype)
    gate = torch.sigmoid(gate) if activation == "sigmoid" else functional.silu(gate)
    output = (wide * gate).to(x.dtype)
    if not prenorm:
        return output
    kept = residual.dtype if residual is not None else dtype if residual_in_fp32 else x.dtype
    return output, total.to(kept)


def _check(activation: str) -> None:
    if activation not in ("swish", "silu", "sigmoid"):
        raise ValueError(f"Unsupported activation: {activation}")


class _Gated(torch.nn.Module):
    """What both norms share."""

    _normalize: Callable[..., Result]

    def __init__(
        self,
        hidden_size: int,
        elementwise_affine: bool = True,
        eps: float = 1e-5,
        activation: str = "swish",
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        _check(activation)
        self.hidden_size = hidden_size
        self.elementwise_affine = elementwise_affine
        self.eps = eps
        self.activation = activation
        self.weight: torch.nn.Parameter | None
        if elementwise_affine:
            self.weight = torch.nn.Parameter(torch.empty(hidden_size, device=device, dtype=dtype))
        else:
            self.register_parameter("weight", None)
        self.register_parameter("bias", None)
        self.bias: torch.nn.Parameter | None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Ones, and zeros for the bias."""
        if self.weight is not None:
            torch.nn.init.ones_(self.weight)
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)

    def forward(
        self,
        x: torch.Tensor,
        g: torch.Tensor,
        residual: torch.Tensor | None = None,
        prenorm: bool = False,
        residual_in_fp32: bool = False,
    ) -> Result:
        """[..., h], as ``x``; with ``prenorm`` also the sum with ``residual``."""
        return self._normalize(
            x,
            g,
            self.weight,
            self.bias,
            self.activation,
            residual,
            prenorm,
            residual_in_fp32,
            self.eps,
        )

    def extra_repr(self) -> str:
        return f"{self.hidden_size}, eps={self.eps}, activation={self.activation}"


class FusedRMSNormGated(_Gated):
    """:func:`rms_norm_gated` as a module.

    :param hidden_size: h.
    :param elementwise_affine: whether there is a weight.
    """

    _normalize = staticmethod(rms_norm_gated)


class FusedLayerNormGated(_Gated):
    """:func:`layer_norm_gated` as a module.

    :param hidden_size: h.
    :param elementwise_affine: whether there is a weight.
    :param bias: whether there is a bias beside it.
    """

    _normalize = staticmethod(layer_norm_gated)

    def __init__(
        self,
        hidden_size: int,
        elementwise_affine: bool = True,
        bias: bool = False,
        activation: str = "swish",
        eps: float = 1e-5,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(hidden_size, elementwise_affine, eps, activation, device, dtype)
        if elementwise_affine and bias:
            self.bias = torch.nn.Parameter(torch.zeros(hidden_size, device=device, dtype=dtype))


def l2norm(
    x: torch.Tensor, eps: float = 1e-6, output_dtype: torch.dtype | None = None
) -> torch.Tensor:
    """``x / sqrt(sum(x^2) + eps)`` over the last dimension, in float32, rounded once at the end.

    :param x: [..., d].
    :param eps: added to the sum of squares.
    :param output_dtype: default the dtype of ``x``.
    """
    wide = x.to(compute_dtype(x))
    normal = wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + eps)
    return normal.to(output_dtype or x.dtype)


l2_norm = l2norm


class L2Norm(torch.nn.Module):
    """:func:`l2norm` as a module."""

    def __init__(self, eps: float = 1e-6, output_dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.eps = eps
        self.output_dtype = output_dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., d], as ``x``."""
        return l2norm(x, self.eps, self.output_dtype)


#: Whether kernels are tuned inside CUDA graphs; nothing is tuned here.
USE_CUDA_GRAPH: Final = False
