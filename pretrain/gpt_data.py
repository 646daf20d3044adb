"""GPT datasets from Megatron's arguments, and a look at them before anything is built."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from megatron.core import mpu
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig, MockGPTDataset
from megatron.core.tokenizers.utils.build_tokenizer import build_tokenizer
from megatron.core.transformer.multi_token_prediction import mtp_on_this_rank
from megatron.training import get_args
from megatron.training.arguments import core_transformer_config_from_args
from megatron.training.datasets.fim_dataset import GPTFIMDataset, GPTFIMDatasetConfig
from megatron.training.datasets.sft_dataset import SFTDataset
from megatron.training.utils import get_blend_and_blend_per_split, is_first_or_last_pipeline_stage

from accel_bridge.errors import BridgeError
from accel_bridge.pretrain.indexed_data import check_ids, check_indexed_datasets

#: Fields of GPTDatasetConfig -> the argument that holds their value.
_CONFIG_FROM_ARGUMENTS = {
    "random_seed": "seed",
    "sequence_length": "seq_length",
    "path_to_cache": "data_cache_path",
    "create_attention_mask": "create_attention_mask_in_dataloader",
    "fast_cache_load": "dataloader_fast_cache_load",
    "defer_npy_index_mmap": "dataloader_defer_npy_index_mmap",
    "inter_document_masking": "dataloader_inter_document_masking",
}
#: Fields that have the argument's name.
_CONFIG = """
split multiple_validation_sets full_validation num_dataset_builder_threads mmap_bin_files
reset_position_ids reset_attention_mask eod_mask_loss object_storage_cache_path
mid_level_dataset_surplus allow_ambiguous_pad_tokens context_parallel_size data_parallel_size
hybrid_context_parallel
""".split()
#: Likewise of GPTFIMDatasetConfig: fill in the middle.
_FIM = "fim_rate fim_spm_rate fim_split_sample fim_fragment_rate fim_no_prefix".split()


def check_data(args: Any) -> None:
    """Stop before the model is built when the training data cannot be there.

    :raises BridgeError: naming the path and what was looked for.
    """
    if not args.mock_data:
        blend, per_split = get_blend_and_blend_per_split(args)
        blends = [blend, *(per_split or ())]
        prefixes = [prefix for one in blends if one is not None for prefix in one[0]]
        if not prefixes:
            raise BridgeError(
                "There is no training data.",
                evidence="--data-path, --train-data-path and their likes are missing",
                next="add --data-path PREFIX (made by `accel-bridge preprocess`), or --mock-data",
            )
        if not args.sft:
            first = os.environ.get("LOCAL_RANK", "0") == "0"
            check_indexed_datasets(prefixes, thoroughly=first)


def check_batch(batch: Mapping[str, Any]) -> None:
    """What was read must be in the model's vocabulary, before it goes to the device.

    :param batch: ``tokens`` and ``labels``, each int64 of shape [b, s], or absent. What is on a
        device already is not read: a graph of a whole iteration captures that.
    :raises DataError: an id is not.
    """
    vocabulary = get_args().padded_vocab_size
    for key in ("tokens", "labels"):
        ids = batch.get(key)
        if ids is not None and ids.device.type == "cpu" and ids.numel():
            # Labels may hold a mark for what does not count.
            smallest = int(ids.min()) if key == "tokens" else 0
            check_ids(int(ids.max()), smallest, vocabulary)


def dataset_config(args: Any) -> GPTDatasetConfig:
    """Megatron's dataset configuration from its arguments."""
    blend, blend_per_split = get_blend_and_blend_per_split(args)
    sequences_per_dataset = None
    if args.per_dataset_sequences_path is not None:
        sequences_per_dataset = json.loads(Path(args.per_dataset_sequences_path).read_text())
    names = {**_CONFIG_FROM_ARGUMENTS, **{name: name for name in _CONFIG}}
    values = {field: getattr(args, name) for field, name in names.items()}
    values.update(
        blend=blend,
        blend_per_split=blend_per_split,
        tokenizer=build_tokenizer(args),
        sequences_per_dataset=sequences_per_dataset,
        sequence_parallel_size=args.tensor_model_parallel_size * args.sequence_parallel,
    )
    if not args.fim_data:
        return GPTDatasetConfig(**values)
    values.update({name: getattr(args, name) for name in _FIM})
    values["fim_extra_tokens"] = {
        part: getattr(args, f"fim_{part}_token")
        for part in ("prefix", "middle", "suffix", "pad", "eod")
    }
    return GPTFIMDatasetConfig(**values)


def dataset_class(args: Any) -> type:
    """Which dataset the arguments ask for."""
    if args.sft:
        return SFTDataset  # type: ignore[no-any-return]
    if args.mock_data:
        return MockGPTDataset  # type: ignore[no-any-return]
    return GPTFIMDataset if args.fim_data else GPTDataset  # type: ignore[no-any-return]


def packs_documents(args: Any) -> bool:
    """Whether rows of tokens hold several documents or conversations."""
    return bool(args.sft or args.dataloader_inter_document_masking)


#: Virtual stage -> arguments and what follows from them: it is asked in every microbatch, where a
#: configuration takes a millisecond or more.
_MTP: dict[int | None, tuple[object, bool]] = {}


def has_mtp(vp_stage: int | None) -> bool:
    """Whether this rank holds a multi-token-prediction block, which needs tokens and labels."""
    args = get_args()
    if args.mtp_num_layers is None:
        return False
    known = _MTP.get(vp_stage)
    if known is None or known[0] is not args:
        config = core_transformer_config_from_args(args)
        result = mtp_on_this_rank(
            layout=config.pipeline_model_parallel_layout,
            mtp_num_layers=config.mtp_num_layers,
            ignore_virtual=False,
            vp_stage=vp_stage,
        )
        known = _MTP[vp_stage] = (args, result)
    return known[1]


def builds_datasets(vp_stage: int | None, packed: bool) -> bool:
    """Whether this rank reads data: tensor rank 0 of the stages that see tokens or labels.

    Packed sequences need their boundaries on every stage.
    """
    if mpu.get_tensor_model_parallel_rank() != 0:
        return False
    return packed or is_first_or_last_pipeline_stage(vp_stage) or has_mtp(vp_stage)


def datasets_provider(
    train_val_test_num_samples: list[int], vp_stage: int | None = None
) -> tuple[Any, Any, Any]:
    """Training, validation and test dataset; None each on ranks that read no data.

    :param train_val_test_num_samples: samples wanted of each.
    :param vp_stage: virtual pipeline stage of this rank, if any.
    """
    args = get_args()
    builder = BlendedMegatronDatasetBuilder(
        dataset_class(args),
        train_val_test_num_samples,
        partial(builds_datasets, vp_stage=vp_stage, packed=packs_documents(args)),
        dataset_config(args),
    )
    datasets: tuple[Any, Any, Any] = builder.build()
    return datasets
