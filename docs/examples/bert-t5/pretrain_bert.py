"""Pretrain BERT: every flag of megatron.training. Run it with torchrun, like pretrain_gpt.py.

Megatron's wheel has the model and the data; its script is in the checkout's examples/bert.
Legend: b micro batch, s sequence.
"""

from __future__ import annotations

import accel_bridge.auto  # noqa: F401  (before Megatron)

# isort: split

from functools import partial
from typing import Any

import torch
from masked_data import build, next_batch
from megatron.core.datasets.bert_dataset import (
    BERTMaskedWordPieceDataset,
    BERTMaskedWordPieceDatasetConfig,
)
from megatron.core.enums import ModelType
from megatron.core.models.bert.bert_layer_specs import (
    bert_layer_local_spec,
    bert_layer_with_transformer_engine_spec,
)
from megatron.core.models.bert.bert_model import BertModel
from megatron.training import get_args, pretrain
from megatron.training.argument_utils import pretrain_cfg_container_from_args
from megatron.training.arguments import core_transformer_config_from_args, parse_and_validate_args
from megatron.training.utils import average_losses_across_data_parallel_group

KEYS = ["text", "types", "labels", "is_random", "loss_mask", "padding_mask"]


def model_provider(
    pre_process: bool = True,
    post_process: bool = True,
    vp_stage: int | None = None,
    config: Any = None,
    pg_collection: Any = None,
) -> BertModel:
    """The model, or this rank's stage of it."""
    args = get_args()
    local = args.transformer_impl == "local"
    return BertModel(
        config=config or core_transformer_config_from_args(args),
        transformer_layer_spec=bert_layer_local_spec
        if local
        else bert_layer_with_transformer_engine_spec,
        vocab_size=args.padded_vocab_size,
        max_sequence_length=args.max_position_embeddings,
        num_tokentypes=2 if args.bert_binary_head else 0,
        add_binary_head=args.bert_binary_head,
        share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
        pre_process=pre_process,
        post_process=post_process,
        vp_stage=vp_stage,
    )


def loss(mask: torch.Tensor, order: torch.Tensor, output: Any) -> tuple[torch.Tensor, Any]:
    """Of the hidden words, and of which sentence comes first.

    :param mask: [b, s], 1 where a word was hidden.
    :param order: [b], 1 where the sentences were swapped.
    :param output: losses of words [b, s]; scores of the order [b, 2] or None.
    """
    losses, scores = output
    parts = {"lm loss": (losses.float() * mask).sum() / mask.sum()}
    if scores is not None:
        parts["sop loss"] = torch.nn.functional.cross_entropy(scores.float(), order)
    means = average_losses_across_data_parallel_group(list(parts.values()))
    return sum(parts.values(), torch.zeros_like(mask.sum())), dict(zip(parts, means, strict=True))


def forward_step(data: Any, model: Any) -> tuple[Any, Any]:
    """What Megatron's schedule calls for each micro batch."""
    batch = next_batch(data, KEYS)
    types = batch["types"] if get_args().bert_binary_head else None
    output = model(
        batch["text"], batch["padding_mask"], tokentype_ids=types, lm_labels=batch["labels"]
    )
    return output, partial(loss, batch["loss_mask"].float(), batch["is_random"])


def datasets(counts: list[int], vp_stage: int | None = None) -> Any:
    """Pairs of sentences, a seventh of their words hidden."""
    args = get_args()
    return build(
        BERTMaskedWordPieceDataset,
        BERTMaskedWordPieceDatasetConfig,
        counts,
        sequence_length=args.seq_length,
        masking_max_ngram=3,
        masking_use_geometric_distribution=False,
        classification_head=args.bert_binary_head,
    )


datasets.is_distributed = True  # type: ignore[attr-defined]

if __name__ == "__main__":
    args = parse_and_validate_args(args_defaults={"tokenizer_type": "BertWordPieceLowerCase"})
    pretrain(
        pretrain_cfg_container_from_args(args),
        datasets,
        ModelType.encoder_or_decoder,
        forward_step,
        model_provider,
    )
