"""Shapes between pipeline stages when rows of documents become one sequence."""

from __future__ import annotations

import sys
from argparse import Namespace
from types import ModuleType
from typing import Any, cast

import pytest

from accel_bridge.patches.packed_sequences import PATCHES
from accel_bridge.patching import PatchContext


def schedule(*, seq_length: int, micro_batch_size: int, **rest: Any) -> tuple[int, int, Any]:
    """What a schedule is told."""
    return seq_length, micro_batch_size, rest


def patched(monkeypatch: pytest.MonkeyPatch, args: object) -> Any:
    """The patched function's answer where Megatron's arguments are these."""
    name = "megatron.training.global_vars"
    module = ModuleType(name)
    module._GLOBAL_ARGS = args  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, name, module)
    (patch,) = PATCHES
    context = PatchContext(lambda: schedule, cast(ModuleType, None), None, None, patch)
    return cast(Any, patch.make(context))()


@pytest.mark.parametrize("flag", ["dataloader_inter_document_masking", "sft"])
def test_rows_of_documents_are_one_sequence(monkeypatch: pytest.MonkeyPatch, flag: str) -> None:
    run = patched(monkeypatch, Namespace(**{flag: True}))
    told = run(seq_length=64, micro_batch_size=2, decoder_seq_length=None)
    assert told == (128, 1, {"decoder_seq_length": None})


@pytest.mark.parametrize("args", [None, Namespace(), Namespace(sft=False)])
def test_other_batches_keep_upstreams_schedule(
    monkeypatch: pytest.MonkeyPatch, args: object
) -> None:
    assert patched(monkeypatch, args) is schedule
