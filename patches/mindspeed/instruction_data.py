"""Megatron's data sets over MindSpeed-LLM's instruction data (``--is-instruction-dataset``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accel_bridge.patches._factory import megatron_patch
from accel_bridge.patches.mindspeed.translations import ASKED
from accel_bridge.patching import Kind, PatchContext, around


def _initialise(_context: PatchContext, call: Callable[..., Any], cls: Any) -> Any:
    """As upstream's, with the instruction data set where it was asked for."""
    from megatron.training import get_args

    try:
        training = get_args()
    except AssertionError:  # megatron.core without megatron.training
        training = None
    if getattr(training, ASKED, None) and not training.mock_data:
        from accel_bridge.patches.mindspeed.instruction_dataset import InstructionDataset

        return call(cls=InstructionDataset)
    return call()


PATCHES = (
    megatron_patch(
        id="instruction-data",
        target="megatron.core.datasets.blended_megatron_dataset_builder:"
        "BlendedMegatronDatasetBuilder.__init__",
        kind=Kind.WRAP,
        make=around(_initialise),
        why="instruction data of MindSpeed-LLM are three data sets beside one another",
        removed_when="never: upstream does not know MindSpeed-LLM",
        loses="--is-instruction-dataset stops: the data are not found",
        uses=("cls",),
    ),
)
