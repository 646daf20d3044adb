"""One forward step of GPT pretraining: batch, loss, and what Megatron's schedules need.

Legend: b micro batch, s sequence length of this context-parallel rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import torch
from megatron.core import mpu
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.parallel_state import (
    get_context_parallel_group,
    get_hybrid_data_context_parallel_groups,
)
from megatron.core.rerun_state_machine import get_rerun_state_machine
from megatron.core.utils import (
    StragglerDetector,
    flatten_batch_for_packed_sequences,
    get_attr_wrapped_model,
    get_batch_on_this_cp_rank,
    get_batch_on_this_tp_rank,
)
from megatron.training import get_args, get_timers
from megatron.training.training import update_seqlen_stats_from_cu_seqlens
from megatron.training.utils import is_first_or_last_pipeline_stage

from accel_bridge.pretrain.gpt_data import check_batch, has_mtp, packs_documents

#: What a batch may hold; missing ones are None.
BATCH_KEYS = (
    "attention_mask",
    "cu_seqlens",
    "cu_seqlens_padded",
    "hybrid_cp_group",
    "labels",
    "local_cp_size",
    "loss_mask",
    "max_seqlen",
    "position_ids",
    "tokens",
)

#: A loss this many times the largest seen so far counts as a spike (as upstream).
SPIKE_FACTOR = 10

Batch = dict[str, Any]
straggler_timer = StragglerDetector()


def get_batch(data_iterator: Iterator[Batch], vp_stage: int | None) -> Batch:
    """The batch of this rank, by :data:`BATCH_KEYS`.

    Tensor-parallel rank 0 reads it and broadcasts it to the others; each context-parallel rank
    takes its part of the sequence. Stages in the middle of a pipeline get only the boundaries of
    packed sequences.
    """
    args = get_args()
    packed = packs_documents(args)
    on_edge = is_first_or_last_pipeline_stage(vp_stage)
    mtp = has_mtp(vp_stage)
    if not on_edge and not mtp and not packed:
        return dict.fromkeys(BATCH_KEYS)
    tp_rank = mpu.get_tensor_model_parallel_rank()
    batch: Batch = {}
    if tp_rank == 0:
        read = next(data_iterator)
        check_batch(read)
        for key in BATCH_KEYS:
            tensor = read.get(key)
            batch[key] = None if tensor is None else tensor.cuda(non_blocking=True)
    batch = get_batch_on_this_tp_rank(
        batch,
        broadcast_src_rank=mpu.get_tensor_model_parallel_src_rank(),
        broadcast_group=mpu.get_tensor_model_parallel_group(),
        has_cu_seqlens=packed,
        is_hybrid_cp=args.hybrid_context_parallel,
        create_attention_mask_in_dataloader=args.create_attention_mask_in_dataloader,
        cp_size=args.context_parallel_size,
        tp_rank=tp_rank,
        micro_batch_size=args.micro_batch_size,
        seq_length=args.seq_length,
        mtp_on_this_rank=mtp,
        pipeline_model_parallel_size=args.pipeline_model_parallel_size,
        is_pipeline_first_stage=mpu.is_pipeline_first_stage(),
        is_pipeline_last_stage=mpu.is_pipeline_last_stage(),
    )
    batch = flatten_batch_for_packed_sequences(batch)
    if not on_edge and not mtp:
        boundaries = ("cu_seqlens", "cu_seqlens_padded", "max_seqlen")
        return dict.fromkeys(BATCH_KEYS) | {key: batch[key] for key in boundaries}
    return get_batch_on_this_cp_rank(  # type: ignore[no-any-return]
        batch,
        is_hybrid_cp=args.hybrid_context_parallel,
        cp_group=get_context_parallel_group(),
        hybrid_cp_group_func=get_hybrid_data_context_parallel_groups,
        use_per_sequence_balancing=args.dataloader_inter_document_masking and not args.sft,
    )


def packed_sequences(batch: Batch) -> PackedSeqParams | None:
    """The boundaries of packed sequences, or None for an ordinary batch."""
    if batch["cu_seqlens"] is None:
        return None
    boundaries = batch["cu_seqlens"].squeeze(0)
    padded = batch["cu_seqlens_padded"]
    padded = None if padded is None else padded.squeeze(0)
    # The work that counts is that of real tokens, so statistics take the unpadded boundaries.
    update_seqlen_stats_from_cu_seqlens(boundaries)
    used = boundaries if padded is None else padded
    local_cp_size = batch["local_cp_size"]
    args = get_args()
    # Mamba's layers keep sequences apart by an index of all tokens.
    total = int(used[-1].item()) if args.hybrid_layer_pattern is not None else None
    longest = int(batch["max_seqlen"].item())
    return PackedSeqParams(
        qkv_format="thd",
        cu_seqlens_q=used,
        cu_seqlens_kv=used,
        cu_seqlens_q_padded=padded,
        cu_seqlens_kv_padded=padded,
        max_seqlen_q=longest,
        max_seqlen_kv=longest,
        local_cp_size=None if local_cp_size is None else int(local_cp_size.item()),
        cp_group=batch["hybrid_cp_group"],
        total_tokens=total,
        tokens_per_sample=args.seq_length,
    )


def loss_func(
    loss_mask: torch.Tensor, output: torch.Tensor, model: Any = None
) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """Sum of the token losses that count.

    :param loss_mask: [b, s], 1 where a token's loss counts.
    :param output: [b, s], loss of every token.
    :returns: the sum, the number of tokens that count (int), and both for the log.
    """
    args = get_args()
    if args.logits_load_dir is not None:
        return _distillation_loss(loss_mask, output, model)
    mask = loss_mask.reshape(-1).float()
    loss = torch.sum(output.reshape(-1).float() * mask)
    tokens = mask.sum().detach().to(torch.int)
    _check_loss(loss)
    report = {"lm loss": torch.cat([loss.detach().clone().view(1), tokens.view(1)])}
    return loss, tokens, report


def _check_loss(loss: torch.Tensor) -> None:
    """Hand NaN, infinity and spikes to Megatron's rerun state machine, as the flags ask."""
    args = get_args()
    machine = get_rerun_state_machine()
    checks: list[tuple[Callable[[Any], Any], str, bool]] = []
    if args.check_for_nan_in_loss_and_grad:
        checks.append((torch.isnan, "found NaN in local forward loss calculation", True))
        checks.append((torch.isinf, "found Inf in local forward loss calculation", True))
    if args.check_for_spiky_loss:
        spiky = partial(machine.is_unexpectedly_large, threshold=SPIKE_FACTOR, context="loss")
        checks.append((spiky, "Spiky loss", False))
    for rejection, message, fatal in checks:
        machine.validate_result(
            result=loss,
            rejection_func=rejection,
            message=message,
            tolerance=0.0,  # the forward pass is deterministic
            fatal=fatal,
        )


@cache
def _cached_logits_loss() -> Any:
    """The loss against a teacher's stored log-probabilities; its reader is opened once."""
    from megatron.training.distillation import LossFuncCallable

    args = get_args()
    return LossFuncCallable(
        logprobs_dir=args.logits_load_dir,
        decode_threads=args.logits_load_decode_threads,
        prefetch_factor=args.logits_load_prefetch_factor,
        msc_prefetch_depth=args.logits_load_msc_prefetch_depth,
        kd_loss_alpha=args.logits_load_kd_loss_alpha,
        ignore_errors=args.logits_load_ignore_errors,
    )


def _distillation_loss(
    loss_mask: torch.Tensor, output: torch.Tensor, model: Any
) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """Loss of ``--logits-load-dir``: distillation from a teacher that ran earlier."""
    loss, tokens, report = _cached_logits_loss()(loss_mask, output, model=model)
    _check_loss(loss)
    return loss, tokens, report


def forward_step(
    data_iterator: Iterator[Batch], model: Any, return_schedule_plan: bool = False
) -> tuple[Any, Callable[..., Any]]:
    """One micro batch through the model.

    :returns: the model's output ([b, s] token losses on the last stage) and the loss function
        that its schedule applies there; with ``return_schedule_plan`` the plan in place of the
        output.
    """
    timers = get_timers()
    timers("batch-generator", log_level=2).start()
    with straggler_timer(bdata=True):
        batch = get_batch(data_iterator, get_attr_wrapped_model(model, "vp_stage"))
        packed = packed_sequences(batch)
    timers("batch-generator").stop()
    inputs = (batch["tokens"], batch["position_ids"], batch["attention_mask"])
    labels = {"labels": batch["labels"], "loss_mask": batch["loss_mask"]}
    with straggler_timer:
        if return_schedule_plan:
            output = model.build_schedule_plan(*inputs, **labels)
        else:
            output = model(*inputs, **labels, packed_seq_params=packed)
    return output, partial(loss_func, batch["loss_mask"], model=model)
