"""Rows of MindSpeed-LLM's instruction data as Megatron's samples. Legend: s sequence."""

from __future__ import annotations

from typing import Any

import numpy
import torch
from megatron.core.datasets.indexed_dataset import IndexedDataset
from megatron.core.datasets.megatron_dataset import MegatronDataset
from megatron.training import get_args

from accel_bridge.patches.mindspeed.instruction_rows import (
    IGNORED,
    document_lengths,
    draw_order,
    fit,
)
from accel_bridge.patches.mindspeed.translations import ASKED, FIELDS, check, field


class InstructionDataset(MegatronDataset):  # type: ignore[misc]
    """Rows of tokens [s] with labels [s] and a loss mask [s]; see :mod:`.instruction_rows`."""

    def __init__(self, dataset: Any, path: Any, indices: Any, *rest: Any, **options: Any) -> None:
        super().__init__(dataset, path, indices, *rest, **options)
        args = get_args()
        self._asked: dict[str, bool] = getattr(args, ASKED)
        self._order = draw_order(
            len(indices),
            len(indices) if self.num_samples is None else self.num_samples,
            self.config.random_seed,
            shuffle=not self._asked["in_order"],
            pad_epoch_to=args.global_batch_size if self._asked["whole_batches"] else 1,
        )

    @staticmethod
    def build_low_level_dataset(dataset_path: str, config: Any) -> dict[str, Any]:
        """One indexed data set for each field."""
        check([dataset_path])
        return {
            name: IndexedDataset(field(dataset_path, name), mmap=config.mmap_bin_files)
            for name in FIELDS
        }

    @staticmethod
    def numel_low_level_dataset(low_level_dataset: dict[str, Any]) -> int:
        """The number of rows."""
        return len(low_level_dataset["input_ids"])

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, idx: int | None) -> dict[str, torch.Tensor]:
        length: int = self.config.sequence_length
        row = self.indices[self._order[0 if idx is None else idx]]
        tokens, labels, mask = (
            numpy.asarray(self.dataset[name][row], dtype=numpy.int64) for name in FIELDS
        )
        packed = self._asked["packed"]
        if packed:
            tokens, labels, mask = tokens[:length], labels[:length], mask[:length]
        else:
            tokens, labels = fit(tokens, labels, length)
        # A position predicts the next token, so labels move by one and the last has none.
        inputs = numpy.zeros(length, dtype=numpy.int64)
        targets = numpy.full(length, IGNORED, dtype=numpy.int64)
        inputs[: len(tokens)] = tokens
        targets[: len(labels) - 1] = labels[1:]
        learned = (targets != IGNORED) & (idx is not None)
        sample = {
            "tokens": torch.from_numpy(inputs),
            "labels": torch.from_numpy(numpy.where(targets == IGNORED, 0, targets)),
            "loss_mask": torch.from_numpy(learned.astype(numpy.float32)),
            "position_ids": torch.arange(length),
        }
        if packed:
            numbers = mask if self._asked["numbered"] else None
            end_of_document = self.config.tokenizer.eod
            sample |= _bounds(document_lengths(tokens, numbers, end_of_document, length), length)
        elif self.config.create_attention_mask:
            sample["attention_mask"] = torch.ones(1, length, length).tril() < 0.5
        return sample


def _bounds(lengths: list[int], length: int) -> dict[str, torch.Tensor]:
    """Positions [s] and document bounds [s + 1], as Megatron's own data set gives them."""
    bounds = torch.full((length + 1,), length, dtype=torch.int32)
    bounds[0] = 0
    bounds[1 : len(lengths) + 1] = torch.tensor(lengths, dtype=torch.int32).cumsum(0)
    return {
        "position_ids": torch.cat([torch.arange(count) for count in lengths]),
        "cu_seqlens": bounds,
        "max_seqlen": torch.tensor(max(lengths), dtype=torch.int32),
    }
