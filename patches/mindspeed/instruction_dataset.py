"""Megatron's data set over MindSpeed-LLM's instruction data (``--is-instruction-dataset``)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from accel_bridge._arguments import ArgumentError
from accel_bridge.patches._factory import megatron_patch
from accel_bridge.patching import Kind, PatchContext

#: Attribute of Megatron's arguments that says how the data are read.
ASKED: Final = "accel_bridge_instruction"
_FIELDS: Final = ("input_ids", "labels", "attention_mask")


def field(prefix: str, name: str) -> str:
    """Prefix of one of the data sets of ``--data-path`` PREFIX."""
    return f"{prefix}_packed_{name}_document"


def check(prefixes: list[str]) -> None:
    """:raises ArgumentError: ``--data-path`` names no instruction data."""
    for prefix in prefixes:
        missing = [name for name in _FIELDS if not Path(field(prefix, name) + ".bin").is_file()]
        if missing:
            raise ArgumentError(
                "--data-path names no instruction data.",
                evidence=f"{field(prefix, missing[0])}.bin does not exist",
                next="give the prefix that MindSpeed-LLM's preprocess_data.py was given as "
                "--output-prefix, without _packed_input_ids_document",
            )


def _make_class(args: Any) -> Any:
    """The data set's class, for one training's arguments."""
    import numpy
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDataset
    from megatron.core.datasets.megatron_dataset import MegatronDataset

    from accel_bridge.patches.mindspeed.instruction_rows import (
        IGNORED,
        document_lengths,
        draw_order,
        fit,
    )

    asked: dict[str, bool] = getattr(args, ASKED)
    length: int = args.seq_length

    class InstructionDataset(MegatronDataset):  # type: ignore[misc]
        """Rows of tokens [s] with labels [s] and a loss mask [s]; see :mod:`.instruction_rows`."""

        def __init__(self, dataset: Any, path: Any, indices: Any, *rest: Any, **options: Any):
            super().__init__(dataset, path, indices, *rest, **options)
            samples = len(indices) if self.num_samples is None else self.num_samples
            self.order = draw_order(
                len(indices),
                samples,
                self.config.random_seed,
                shuffle=not asked["in_order"],
                pad_epoch_to=args.global_batch_size if asked["whole_batches"] else 1,
            )

        @staticmethod
        def build_low_level_dataset(dataset_path: str, config: Any) -> dict[str, Any]:
            """One indexed data set for each field."""
            check([dataset_path])
            return {
                name: IndexedDataset(field(dataset_path, name), mmap=config.mmap_bin_files)
                for name in _FIELDS
            }

        @staticmethod
        def numel_low_level_dataset(low_level_dataset: dict[str, Any]) -> int:
            """The number of rows."""
            return len(low_level_dataset["input_ids"])

        def __len__(self) -> int:
            return len(self.order)

        def __getitem__(self, idx: int | None) -> dict[str, torch.Tensor]:
            row = self.indices[self.order[0 if idx is None else idx]]
            tokens, labels, mask = (
                numpy.asarray(self.dataset[name][row], dtype=numpy.int64) for name in _FIELDS
            )
            if asked["packed"]:
                tokens, labels, mask = tokens[:length], labels[:length], mask[:length]
            else:
                tokens, labels = fit(tokens, labels, length)
            # A position predicts the next token, so labels move by one and the last has none.
            padded = numpy.zeros((2, length), dtype=numpy.int64)
            padded[1] = IGNORED
            padded[0, : len(tokens)] = tokens
            padded[1, : len(labels) - 1] = labels[1:]
            learned = (padded[1] != IGNORED) & (idx is not None)
            sample = {
                "tokens": torch.from_numpy(padded[0]),
                "labels": torch.from_numpy(numpy.where(padded[1] == IGNORED, 0, padded[1])),
                "loss_mask": torch.from_numpy(learned.astype(numpy.float32)),
                "position_ids": torch.arange(length),
            }
            if asked["packed"]:
                ends = document_lengths(
                    tokens,
                    mask if asked["numbered"] else None,
                    self.config.tokenizer.eod,
                    length,
                )
                sample |= _bounds(ends, length)
            elif self.config.create_attention_mask:
                sample["attention_mask"] = torch.ones(1, length, length).tril() < 0.5
            return sample

    return InstructionDataset


def _bounds(ends: list[int], length: int) -> dict[str, Any]:
    """Positions [s] and document bounds [s + 1], as Megatron's own data set gives them."""
    import torch

    bounds = torch.full((length + 1,), length, dtype=torch.int32)
    bounds[0] = 0
    bounds[1 : len(ends) + 1] = torch.tensor(ends, dtype=torch.int32).cumsum(0)
    return {
        "position_ids": torch.cat([torch.arange(count) for count in ends]),
        "cu_seqlens": bounds,
        "max_seqlen": torch.tensor(max(ends), dtype=torch.int32),
    }


def _make(context: PatchContext) -> Callable[..., Any]:
    upstream = context.original
    kind = context.argument("cls")

    @functools.wraps(upstream)
    def initialise(*args: Any, **options: Any) -> None:
        """As upstream's, with the instruction data set where it was asked for."""
        from megatron.training import get_args

        try:
            training = get_args()
        except AssertionError:  # megatron.core without megatron.training
            training = None
        if getattr(training, ASKED, None) and not training.mock_data:
            changed, named = kind.put(args, options, _make_class(training))
            return upstream(*changed, **named)  # type: ignore[no-any-return]
        return upstream(*args, **options)  # type: ignore[no-any-return]

    return initialise


PATCHES = (
    megatron_patch(
        id="instruction-data",
        target="megatron.core.datasets.blended_megatron_dataset_builder:"
        "BlendedMegatronDatasetBuilder.__init__",
        kind=Kind.WRAP,
        make=_make,
        why="instruction data of MindSpeed-LLM are three data sets beside one another",
        removed_when="never: upstream does not know MindSpeed-LLM",
        loses="--is-instruction-dataset stops: the data are not found",
        uses=("cls",),
    ),
)
