"""Rotary position embedding without Transformer Engine's fused one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from accel_bridge.patches._conditions import unless_faster
from accel_bridge.patches._factory import megatron_patch
from accel_bridge.patching import Kind, PatchContext

if TYPE_CHECKING:
    import torch

    from accel_bridge.kernels import TensorCache


class Angles:
    """Cosines and sines of the angles, shared by every layer and micro batch."""

    def __init__(self) -> None:
        from accel_bridge.kernels import TensorCache

        self._known: TensorCache[tuple[torch.Tensor, torch.Tensor]] = TensorCache()

    def of(self, freqs: torch.Tensor, mscale: float) -> tuple[torch.Tensor, torch.Tensor]:
        """float32 cosines and sines of ``freqs`` [s, .., r], times ``mscale``."""

        import torch

        def turn() -> tuple[torch.Tensor, torch.Tensor]:
            return torch.cos(freqs) * mscale, torch.sin(freqs) * mscale

        return self._known.get((freqs,), mscale, turn)


def _make(context: PatchContext) -> Callable[..., Any]:
    from accel_bridge.kernels import ROTARY

    upstream = context.original
    kernel = context.host.kernel(ROTARY)
    angles = Angles()

    def _apply_rotary_pos_emb_bshd(
        t: Any,
        freqs: Any,
        rotary_interleaved: bool = False,
        mla_rotary_interleaved: bool = False,
        mscale: float = 1.0,
        multi_latent_attention: bool | None = None,
    ) -> Any:
        """t [s, b, n, d] with its first r dimensions rotated by freqs [s, 1, 1, r]."""
        mla = mla_rotary_interleaved if multi_latent_attention is None else multi_latent_attention
        if mla or freqs.requires_grad or t.dim() != 4 or freqs.dim() != 4:
            return upstream(
                t,
                freqs,
                rotary_interleaved,
                mla_rotary_interleaved,
                mscale,
                multi_latent_attention,
            )
        cos, sin = angles.of(freqs, mscale)
        return kernel(t, cos, sin, interleaved=rotary_interleaved)

    return _apply_rotary_pos_emb_bshd


class Positions:
    """Each token's position in its document, for packed documents."""

    def __init__(self) -> None:
        from accel_bridge.kernels import TensorCache

        self._known: TensorCache[torch.Tensor] = TensorCache()

    def angles(self, cu_seqlens: torch.Tensor, freqs: torch.Tensor, tokens: int) -> torch.Tensor:
        """freqs [longest, 1, 1, r] at every token's position: [t, 1, 1, r]; waits for nothing."""

        import torch

        def look_up() -> torch.Tensor:
            place = torch.arange(tokens, device=freqs.device)
            ends = cu_seqlens[1:].contiguous()
            document = torch.searchsorted(ends, place, right=True)
            position = place - cu_seqlens.index_select(0, document)
            return freqs.index_select(0, position)

        return self._known.get((cu_seqlens, freqs), tokens, look_up)


def _make_packed(context: PatchContext) -> Callable[..., Any]:
    from accel_bridge.kernels import ROTARY

    upstream = context.original
    kernel = context.host.kernel(ROTARY)
    angles, positions = Angles(), Positions()

    def _apply_rotary_pos_emb_thd(
        t: Any,
        cu_seqlens: Any,
        freqs: Any,
        rotary_interleaved: bool = False,
        mla_rotary_interleaved: bool = False,
        mscale: float = 1.0,
        cp_group: Any = None,
        multi_latent_attention: bool | None = None,
    ) -> Any:
        """t [t, n, d] with its first r dimensions rotated by freqs [longest or t, 1, 1, r]."""
        mla = mla_rotary_interleaved if multi_latent_attention is None else multi_latent_attention
        split = cp_group is None or cp_group.size() > 1
        if mla or split or freqs.requires_grad or t.dim() != 3 or freqs.dim() != 4:
            return upstream(
                t,
                cu_seqlens,
                freqs,
                rotary_interleaved,
                mla_rotary_interleaved,
                mscale,
                cp_group,
                multi_latent_attention,
            )
        # Upstream takes as many angles as tokens to mean those of the whole packed row.
        if freqs.shape[0] != t.shape[0]:
            freqs = positions.angles(cu_seqlens, freqs, t.shape[0])
        cos, sin = angles.of(freqs, mscale)
        return kernel(t.unsqueeze(1), cos, sin, interleaved=rotary_interleaved).squeeze(1)

    return _apply_rotary_pos_emb_thd


PATCHES = (
    megatron_patch(
        id="rotary-packed",
        target="megatron.core.models.common.embeddings.rope_utils:_apply_rotary_pos_emb_thd",
        requires="megatron-core>=0.19,<0.20",
        kind=Kind.REPLACE,
        make=_make_packed,
        why="it rotates one document after another, and fetches every length from the device",
        removed_when="upstream's unfused rotary embedding takes all documents at once",
        loses="training on packed documents waits for the host",
        skip_when=unless_faster("rotary"),
        kernels=("rotary",),
    ),
    megatron_patch(
        id="rotary",
        target="megatron.core.models.common.embeddings.rope_utils:_apply_rotary_pos_emb_bshd",
        requires="megatron-core>=0.19,<0.20",
        kind=Kind.REPLACE,
        make=_make,
        why="six passes over queries and keys, and cosines recomputed in every layer",
        removed_when="upstream's unfused rotary embedding is one kernel",
        loses="a few per cent of a step with --position-embedding-type rope",
        skip_when=unless_faster("rotary"),
        kernels=("rotary",),
    ),
)
