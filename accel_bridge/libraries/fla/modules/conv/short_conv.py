"""The short convolution as a layer.

Legend: b batch, t tokens, d channels, w width, n packed sequences.
"""

from __future__ import annotations

from typing import Any

import torch

from .causal_conv1d import causal_conv1d, causal_conv1d_update


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
