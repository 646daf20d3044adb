"""Pretrain T5: every flag of megatron.training. Run it with torchrun, like pretrain_gpt.py.

Megatron's wheel has the model and the data; its script is in the checkout's examples/t5. Megatron
has no pipeline parallelism for T5. Legend: b micro batch, s decoder's sequence.
"""

from __future__ import annotations

import accel_bridge.auto  # noqa: F401  (before Megatron)

# isort: split

from copy import deepcopy
from functools import partial
from typing import Any

import torch
from masked_data import build, next_batch
from megatron.core.datasets.t5_dataset import (
    T5MaskedWordPieceDataset,
    T5MaskedWordPieceDatasetConfig,
)
from megatron.core.enums import ModelType
from megatron.core.models.T5 import T5Model, t5_spec
from megatron.training import get_args, pretrain
from megatron.training.argument_utils import pretrain_cfg_container_from_args
from megatron.training.arguments import core_transformer_config_from_args, parse_and_validate_args

KEYS = ["text_enc", "text_dec", "labels", "loss_mask", "enc_mask", "dec_mask"]


def model_provider(
    pre_process: bool = True,
    post_process: bool = True,
    add_encoder: bool = True,
    add_decoder: bool = True,
    vp_stage: int | None = None,
    config: Any = None,
    pg_collection: Any = None,
) -> T5Model:
    """The model: an encoder and a decoder."""
    args = get_args()
    config = config or core_transformer_config_from_args(args)
    encoder = deepcopy(config)
    encoder.num_layers = args.encoder_num_layers
    kind = "local" if args.transformer_impl == "local" else "transformer_engine"
    blocks = {
        part: getattr(t5_spec, f"get_t5_{part}_with_{kind}_block_spec")(layers)
        for part, layers in (("encoder", encoder.num_layers), ("decoder", config.num_layers))
    }
    return T5Model(
        config=config,
        encoder_config=encoder,
        transformer_encoder_layer_spec=blocks["encoder"],
        transformer_decoder_layer_spec=blocks["decoder"],
        vocab_size=args.padded_vocab_size,
        max_sequence_length=args.max_position_embeddings,
        pre_process=pre_process,
        post_process=post_process,
        share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
        position_embedding_type=args.position_embedding_type,
        rotary_percent=args.rotary_percent,
        relative_attention_num_buckets=args.relative_attention_num_buckets,
        relative_attention_max_distance=args.relative_attention_max_distance,
        add_encoder=add_encoder,
        add_decoder=add_decoder,
    )


def loss(mask: torch.Tensor, losses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """Sum over the tokens that count, and how many they are; losses and mask are [b, s]."""
    total = (losses.float() * mask).sum()
    tokens = mask.sum().to(torch.int)
    return total, tokens, {"lm loss": torch.stack([total.detach(), tokens.float()])}


def forward_step(data: Any, model: Any) -> tuple[Any, Any]:
    """What Megatron's schedule calls for each micro batch."""
    batch = next_batch(data, KEYS)
    masks = T5MaskedWordPieceDataset.config_attention_mask(
        batch["text_enc"],
        batch["text_dec"],
        batch["enc_mask"] < 0.5,
        batch["dec_mask"] < 0.5,
        get_args().transformer_impl == "local",
    )
    output = model(batch["text_enc"], batch["text_dec"], *masks, lm_labels=batch["labels"])
    return output, partial(loss, batch["loss_mask"].float())


def datasets(counts: list[int], vp_stage: int | None = None) -> Any:
    """Texts with gaps for the encoder, and what fills them for the decoder."""
    args = get_args()
    return build(
        T5MaskedWordPieceDataset,
        T5MaskedWordPieceDatasetConfig,
        counts,
        sequence_length=args.encoder_seq_length,
        sequence_length_decoder=args.decoder_seq_length,
        masking_max_ngram=10,
        masking_use_geometric_distribution=True,
    )


def first_and_last(ranks: list[int]) -> list[int]:
    """Ranks that hold the word embeddings."""
    return sorted({ranks[0], ranks[-1]})


datasets.is_distributed = True  # type: ignore[attr-defined]

if __name__ == "__main__":
    args = parse_and_validate_args(args_defaults={"tokenizer_type": "BertWordPieceCase"})
    pretrain(
        pretrain_cfg_container_from_args(args),
        datasets,
        ModelType.encoder_or_decoder,
        forward_step,
        model_provider,
        get_embedding_ranks=first_and_last,
        get_position_embedding_ranks=lambda ranks: ranks[:1],
    )
