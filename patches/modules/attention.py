"""Megatron's core attention on the backend's attention kernel.

Legend: s sequence (sq queries, sk keys), b batch, n heads of this tensor-parallel rank, g key and
value heads, d head size, t tokens of packed documents.
"""

from __future__ import annotations

import contextlib
import copy
from functools import partial
from typing import Any

import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.transformer.enums import AttnMaskType

from accel_bridge._arguments import ArgumentError
from accel_bridge.kernels import (
    Attend,
    AttentionMask,
    AttentionOptions,
    Documents,
    Layout,
    SequenceSplit,
    context_parallel_attention,
    packed_attention,
    packed_context_parallel_attention,
)
from accel_bridge.kernels.attention_layout import attend_in
from accel_bridge.patches._names import PROCESS_GROUPS, attribute

#: Mask types in which a query sees no later key.
CAUSAL_TYPES = frozenset(
    {AttnMaskType.causal, AttnMaskType.causal_bottom_right, AttnMaskType.padding_causal}
)


def attention_window(
    window: tuple[int, int] | None,
) -> tuple[int | None, int | None] | None:
    """``config.window_size`` with its -1 (unlimited) as None."""
    if window is None:
        return None
    left, right = window
    return (None if left < 0 else left, None if right < 0 else right)


def without_context_parallel(config: Any) -> Any:
    """A copy of the configuration with context parallel size 1.

    ``DotProductAttention.__init__`` asserts it, and reads nothing else that depends on it.
    """
    single = copy.copy(config)
    single.context_parallel_size = 1
    return single


class AttentionCall:
    """One core attention module's calls of the kernel; built from Megatron's module.

    :param module: a ``DotProductAttention`` or subclass.
    :param kernel: the backend's ``attention`` kernel.
    :param layout: the layout it is called in; the result does not depend on it.
    """

    def __init__(self, module: Any, kernel: Attend, layout: Layout = "SBHD") -> None:
        self.module = module
        self.kernel = kernel
        self.layout = layout
        softmax = module.scale_mask_softmax
        # With query-key layer scaling, upstream divides the scores by the layer number and
        # multiplies them back in fp32 inside the softmax; here the scores are fp32 throughout.
        self.scale = module.softmax_scale * (softmax.scale or 1.0)
        self.window = attention_window(softmax.window_size)
        # Without an explicit mask every step needs the same ones; making both takes 3 µs.
        self._masks: dict[AttnMaskType, AttentionMask] = {}
        self._options: dict[tuple[int, float, int], AttentionOptions] = {}

    def dropout_context(self, dropout: float) -> contextlib.AbstractContextManager[Any]:
        """Each tensor-parallel rank drops its own heads' weights with its own random numbers.

        One rank needs no generator of its own, and switching costs the host more than a launch.
        """
        config = self.module.config
        alone = config.tensor_model_parallel_size == 1
        if dropout == 0.0 or config.sequence_parallel or alone:
            return contextlib.nullcontext()
        context: contextlib.AbstractContextManager[Any] = (
            tensor_parallel.get_cuda_rng_tracker().fork()
        )
        return context

    def mask(self, mask_type: AttnMaskType, masked: torch.Tensor | None) -> AttentionMask:
        """The kernel's mask; an explicit Megatron mask (True = hidden) is ANDed with causality."""
        causal = mask_type in CAUSAL_TYPES
        if masked is not None:
            return AttentionMask(causal=causal, window=self.window, masked=masked)
        if mask_type not in self._masks:
            self._masks[mask_type] = AttentionMask(causal=causal, window=self.window)
        return self._masks[mask_type]

    def run(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        masked: torch.Tensor | None,
        mask_type: AttnMaskType,
        packed: Any,
    ) -> torch.Tensor:
        """query [sq, b, n, d] -> [sq, b, n * d]; packed: [t, n, d] -> [t, n * d]."""
        module = self.module
        dropout = module.attention_dropout.p if module.training else 0.0
        group = self._context_parallel_group()
        with self.dropout_context(dropout):
            if packed is not None:
                return self._packed(query, key, value, mask_type, packed, group, dropout)
            if group is not None:
                return self._context_parallel(query, key, value, masked, mask_type, group, dropout)
            return self._attend(query, key, value, self.mask(mask_type, masked), dropout)

    def _attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: AttentionMask,
        dropout: float,
    ) -> torch.Tensor:
        options = self.options(mask, dropout, query.shape[2])
        return attend_in(self.kernel, query, key, value, options)

    def options(self, mask: AttentionMask, dropout: float, heads: int) -> AttentionOptions:
        """The kernel's options for unpacked tensors."""
        offset = self.module.softmax_offset
        key = (id(mask), dropout, heads) if mask.masked is None else None
        known = None if key is None else self._options.get(key)
        if known is not None and known.mask is mask and known.softmax_offset is offset:
            return known
        made = AttentionOptions(
            layout=self.layout,
            heads=heads,
            mask=mask,
            scale=self.scale,
            dropout=dropout,
            softmax_offset=offset,
        )
        if key is not None:
            self._options[key] = made
        return made

    def _packed(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask_type: AttnMaskType,
        packed: Any,
        group: torch.distributed.ProcessGroup | None,
        dropout: float,
    ) -> torch.Tensor:
        options = AttentionOptions(
            layout="TND",
            mask=self.mask(mask_type, None),
            scale=self.scale,
            dropout=dropout,
            softmax_offset=self.module.softmax_offset,
        )
        documents = Documents(
            packed.cu_seqlens_q,
            packed.cu_seqlens_kv,
            getattr(packed, "cu_seqlens_q_padded", None),
            getattr(packed, "cu_seqlens_kv_padded", None),
        )
        if group is None:
            output = packed_attention(self.kernel, query, key, value, options, documents)
        else:
            split = SequenceSplit(keys=group)
            output = packed_context_parallel_attention(
                self.kernel, query, key, value, options, documents, split
            )
        return output.reshape(output.shape[0], -1)

    def _context_parallel(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        masked: torch.Tensor | None,
        mask_type: AttnMaskType,
        group: torch.distributed.ProcessGroup,
        dropout: float,
    ) -> torch.Tensor:
        options = self.options(self.mask(mask_type, masked), dropout, query.shape[2])
        attend = partial(attend_in, self.kernel)
        return context_parallel_attention(
            attend, query, key, value, options, SequenceSplit(keys=group)
        )

    def _context_parallel_group(self) -> torch.distributed.ProcessGroup | None:
        """The group when context parallelism is on for this module, else None."""
        if self.module.config.context_parallel_size == 1:
            return None
        group: torch.distributed.ProcessGroup | None
        group = getattr(attribute(self.module, PROCESS_GROUPS), "cp", None)
        if group is None:
            group = parallel_state.get_context_parallel_group()
        return group


def attention_forward(
    self: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    attn_mask_type: AttnMaskType | None = None,
    attention_bias: torch.Tensor | None = None,
    packed_seq_params: Any = None,
    *,
    kernel: Attend,
    layout: Layout = "SBHD",
) -> torch.Tensor:
    """Stands in for ``DotProductAttention.forward``.

    Differs from upstream in one case, which does not occur in training: a query that sees no key
    gives zeros, while upstream's -10000 fill gives the mean of all values.

    :param attention_mask: bool [b, 1, sq or 1, sk], True = hidden, or None.
    :param attn_mask_type: overrides the module's own, as Transformer Engine's attention does.
    """
    if attention_bias is not None:
        raise ArgumentError(
            "Attention bias is not supported.",
            evidence=f"attention_bias of shape {list(attention_bias.shape)}",
            next="train this model without attention bias",
        )
    call = getattr(self, "_accel_bridge_call", None)
    if call is None:
        call = self._accel_bridge_call = AttentionCall(self, kernel, layout)
    mask_type = self.attn_mask_type if attn_mask_type is None else attn_mask_type
    output: torch.Tensor = call.run(query, key, value, attention_mask, mask_type, packed_seq_params)
    return output
