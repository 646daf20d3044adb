"""Inference of hybrid models: scans and steps of their states, by the backend's own kernels.

Legend: t tokens of all prompts, h heads, p head size, g groups, n state size, c chunks, r requests,
s positions of one step (several with speculative decoding), d channels, w width of the convolution.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from accel_bridge.patches._factory import megatron_patch
from accel_bridge.patches.inference import launches_triton
from accel_bridge.patching import Kind, Patch, PatchContext, around

_SCAN = tuple(
    "x dt A B C cu_chunk_seqlens last_chunk_indices seq_idx out D z dt_bias initial_states "
    "dt_softplus dt_limit state_dtype".split()
)


def _make_scan(context: PatchContext) -> Callable[..., Any]:
    from torch.nn import functional

    from accel_bridge.kernels import STATE_SPACE_SCAN, compute_dtype

    kernel = context.host.kernel(STATE_SPACE_SCAN)
    known = {name: context.argument(name) for name in _SCAN}
    # What else it returns: every state since 0.19; before, every state alone or some of them.
    returned = ("return_raw_states", "return_intermediate_states", "intermediate_chunk_indices")
    wanted = [context.optional_argument(name) for name in returned]

    @functools.wraps(context.original)
    def scan(*args: Any, **kwargs: Any) -> Any:
        """y [t, h, p] into ``out``; the last state of every request, [r, h, p, n].

        ``cu_chunk_seqlens`` [c + 1] are the bounds of chunks, ``seq_idx`` [c] their requests.
        """
        given = {name: one.get(args, kwargs) for name, one in known.items()}
        raw, alone, some = (one.get(args, kwargs) if one else None for one in wanted)
        x, write, read, first = (given[name] for name in ("x", "B", "C", "initial_states"))
        step = given["dt"].to(compute_dtype(x))
        if given["dt_bias"] is not None:
            step = step + given["dt_bias"]
        if given["dt_softplus"]:
            step = functional.softplus(step)
        step = step.clamp(*given["dt_limit"])
        decay = step * given["A"]
        owners = given["seq_idx"].tolist()
        shape = (len(owners), *x.shape[1:], write.shape[-1])
        states = x.new_empty(shape, dtype=given["state_dtype"] or read.dtype)
        state, before = None, -1
        for chunk, (start, end) in enumerate(pairwise(given["cu_chunk_seqlens"].tolist())):
            if owners[chunk] != before:
                before = owners[chunk]
                state = None if first is None else first[before : before + 1]
            if end > start:
                part = (slice(None), slice(start, end))
                y, state = kernel(
                    x[None][part],
                    decay[None][part],
                    write[None][part],
                    read[None][part],
                    step=step[None][part],
                    skip=given["D"],
                    gate=None if given["z"] is None else given["z"][None][part],
                    initial_state=state,
                )
                given["out"][start:end] = y[0]
            states[chunk] = 0 if state is None else state[0]
        if alone:
            return states
        last = states[given["last_chunk_indices"]]
        if some is not None:
            return last, states[some]
        return (last, states) if raw else last

    return scan


_STEP = tuple(
    "state x dt A B C D z dt_bias dt_softplus state_batch_indices intermediate_ssm_states".split()
)


def _step(_context: PatchContext, _call: Callable[[], Any], *values: Any) -> Any:
    """y like x [r, s, h, p]; ``intermediate_ssm_states`` [.., s, h, p, n] after each position.

    Everything may lack s, or h.
    """
    import torch

    from accel_bridge.libraries.mamba_ssm import selective_state_update

    given = dict(zip(_STEP, values, strict=True))
    x, state = given["x"], given["state"]
    kept, rows = given.pop("intermediate_ssm_states"), given["state_batch_indices"]
    if x.dim() < state.dim():
        return selective_state_update(**given)
    live = slice(None) if rows is None else rows[rows >= 0].long()
    found = []
    for at in range(x.shape[1]):
        one = {name: given[name][:, at] for name in ("x", "dt", "B", "C")}
        gate = None if given["z"] is None else given["z"][:, at]
        found.append(selective_state_update(**{**given, **one, "z": gate}))
        if kept is not None:
            kept[live, at] = state[live].to(kept.dtype)
    return torch.stack(found, 1)


_CONVOLUTION = tuple(
    "x conv_state weight bias silu_activation conv_state_indices intermediate_conv_states".split()
)


def _convolve(_context: PatchContext, _call: Callable[[], Any], *values: Any) -> Any:
    """y like x [r, s, d]; ``intermediate_conv_states`` [.., s, d, k] after each position."""
    import torch

    from accel_bridge.libraries.causal_conv1d import causal_conv1d_update

    x, state, weight, bias, silu, rows, kept = values
    live = slice(None) if rows is None else rows[rows >= 0].long()
    activation = "silu" if silu == "silu" else None
    if x.dim() == 2:
        return causal_conv1d_update(x, state, weight, bias, activation, conv_state_indices=rows)
    found = []
    for at in range(x.shape[1]):
        found.append(
            causal_conv1d_update(x[:, at], state, weight, bias, activation, conv_state_indices=rows)
        )
        if kept is not None:
            kept[live, at] = state[live].to(kept.dtype)
    return torch.stack(found, 1)


_PACKED = tuple(
    "x weight bias cu_seqlens initial_states precomputed_seq_idx precomputed_seq_start".split()
)


def _convolve_packed(_context: PatchContext, _call: Callable[[], Any], *values: Any) -> Any:
    """y like x [t, d]; ``initial_states`` [r, d, w - 1] is what came before each request.

    ``cu_seqlens`` [r + 1] are the bounds of requests; of every token the other two are its
    request and where that starts.
    """
    import torch
    from torch.nn import functional

    from accel_bridge.kernels import compute_dtype

    x, weight, bias, bounds, states, owners, starts = values
    tokens = torch.arange(len(x), device=x.device)
    if owners is None:
        owners = torch.searchsorted(bounds[1:].contiguous(), tokens.to(bounds.dtype), right=True)
        owners = owners.clamp(max=len(bounds) - 2)
        starts = bounds[owners]
    # Padding behind the last request may have no place among the tokens.
    owners, starts = owners[: len(x)].long(), starts[: len(x)].long()
    dtype, width = compute_dtype(x), weight.shape[1]
    total = x.new_zeros(x.shape, dtype=dtype) if bias is None else bias.to(dtype).expand(x.shape)
    for tap in range(width):
        source = tokens - (width - 1 - tap)
        inside = source >= starts
        seen = torch.where(inside[:, None], x[source.clamp(min=0)], 0)
        if states is not None:
            column = width - 1 - (starts - source)
            before = states[owners, :, column.clamp(0, width - 2)]
            seen = torch.where((~inside & (column >= 0))[:, None], before.to(x.dtype), seen)
        total = total + seen.to(dtype) * weight[:, tap].to(dtype)
    return functional.silu(total).to(x.dtype)


def _patch(
    id: str,
    name: str,
    what: str,
    uses: tuple[str, ...],
    make: Callable[[PatchContext], Callable[..., Any]],
    *kernels: str,
    module: str = "mamba_mixer",
    requires: str = ">=0.17",
    elsewhere: str = "before 0.17 it is that of mamba_ssm or causal_conv1d, which have shims",
) -> Patch:
    return megatron_patch(
        id=id,
        target=f"megatron.core.ssm.{module}:{name}",
        kind=Kind.WRAP,
        uses=uses,
        make=make,
        why=f"it is {what} in Triton, which has no compiler for this device; Triton's interpreter "
        "takes seconds for a layer",
        removed_when="upstream has one that is not in Triton, or Triton compiles for the device",
        loses="the dynamic inference engine takes minutes for a token of a hybrid model",
        requires=f"megatron-core{requires}",
        elsewhere=elsewhere,
        skip_when=launches_triton,
        kernels=kernels,
    )


PATCHES = (
    _patch(
        "inference-scan",
        "mamba_chunk_scan_combined_varlen",
        "the scan of packed prompts",
        _SCAN,
        _make_scan,
        "state_space_scan",
    ),
    _patch(
        "inference-state-step",
        "selective_state_update",
        "one step of the state",
        _STEP,
        around(_step),
    ),
    _patch(
        "inference-convolution",
        "causal_conv1d_update",
        "one step of the convolution",
        _CONVOLUTION,
        around(_convolve),
        "causal_convolution",
    ),
    *(
        _patch(
            id,
            "causal_conv1d_varlen_fn",
            "the convolution of packed prompts",
            _PACKED,
            around(_convolve_packed),
            module=module,
            requires=requires,
            elsewhere="other versions have it in another module, or not at all",
        )
        for id, module, requires in (
            ("inference-packed-convolution", "ops.causal_conv1d_varlen", ">=0.17,<0.20"),
            ("inference-shared-convolution", "ops.common.causal_conv1d_varlen", ">=0.20"),
        )
    ),
)
