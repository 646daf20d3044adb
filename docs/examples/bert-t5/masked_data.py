"""What BERT and T5 share: datasets from Megatron's arguments."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core import mpu, tensor_parallel
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.utils import get_blend_from_list
from megatron.core.tokenizers.utils.build_tokenizer import build_tokenizer
from megatron.training import get_args


def build(dataset: type, config: type, counts: list[int], **settings: Any) -> Any:
    """Training, validation and test dataset of sentences with gaps.

    :param counts: samples wanted of each.
    :param settings: what this model asks of its configuration besides.
    """
    args = get_args()
    parts = (args.train_data_path, args.valid_data_path, args.test_data_path)
    return BlendedMegatronDatasetBuilder(
        dataset,
        counts,
        lambda: mpu.get_tensor_model_parallel_rank() == 0,
        config(
            random_seed=args.seed,
            blend=get_blend_from_list(args.data_path),
            blend_per_split=[get_blend_from_list(part) for part in parts],
            split=args.split,
            path_to_cache=args.data_cache_path,
            tokenizer=build_tokenizer(args),
            masking_probability=args.mask_prob,
            short_sequence_probability=args.short_seq_prob,
            masking_do_full_word=True,
            masking_do_permutation=False,
            masking_use_longer_ngrams=False,
            mid_level_dataset_surplus=args.mid_level_dataset_surplus,
            allow_ambiguous_pad_tokens=args.allow_ambiguous_pad_tokens,
            **settings,
        ),
    ).build()


def next_batch(data: Any, keys: list[str]) -> dict[str, torch.Tensor]:
    """The next batch, int64, on the device of every tensor-parallel rank."""
    batch = None if data is None else next(data)
    return tensor_parallel.broadcast_data(keys, batch, torch.int64)  # type: ignore[no-any-return]
