"""What doctor says of a checkpoint that a training cannot load."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from accel_bridge.patches.doctor import resume

SAVED: dict[str, Any] = {
    "hidden_size": 64,
    "num_layers": 2,
    "num_query_groups": 1,
    "num_experts": None,
    "optimizer": "adam",
    "bf16": True,
    "fp16": False,
    "use_distributed_optimizer": True,
    "tensor_model_parallel_size": 2,
    "pipeline_model_parallel_size": 1,
    "swiglu": True,
    "hybrid_layer_pattern": None,
    "normalization": "RMSNorm",
}
SHARDED = {"distrib_optim_sharding_type": "dp_reshardable"}
TO_PP = {"tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 2}
MODEL, OTHER, LAYOUT, NONE = (
    *("another model's", "optimizer of the checkpoint in --load is another"),
    *("only in its own layout", "has no optimizer"),
)


@pytest.mark.parametrize(
    ("given", "saved", "content", "expected"),
    [
        ({}, {}, SHARDED, []),
        ({"num_experts": 0, "num_query_groups": None}, {}, SHARDED, []),
        ({"hidden_size": 128}, {}, SHARDED, [MODEL]),
        ({"hidden_size": 128, "use_checkpoint_args": True}, {}, SHARDED, []),
        ({"hybrid_layer_pattern": "M*|M-"}, {"hybrid_layer_pattern": "M*M-"}, SHARDED, []),
        ({"hybrid_layer_pattern": "*-*-", "num_layers": 4}, {}, SHARDED, []),
        ({"hidden_size": 128, "optimizer": "sgd"}, {}, SHARDED, [MODEL, OTHER]),
        ({"bf16": False}, {}, SHARDED, [OTHER]),
        ({"bf16": False, "fp16": True}, {}, SHARDED, []),
        ({"use_distributed_optimizer": False}, {}, SHARDED, [OTHER]),
        ({"use_distributed_optimizer": False, "finetune": True}, {}, SHARDED, []),
        (TO_PP, {}, SHARDED, [LAYOUT]),
        (TO_PP, {}, {"distrib_optim_sharding_type": "fully_reshardable"}, []),
        (TO_PP, {}, None, []),
        ({**TO_PP, "no_load_optim": True}, {}, SHARDED, []),
        ({}, {"no_save_optim": True}, SHARDED, [NONE]),
    ],
)
def test_what_stops_the_loading_is_named(
    monkeypatch: pytest.MonkeyPatch,
    given: dict[str, Any],
    saved: dict[str, Any],
    content: dict[str, str] | None,
    expected: list[str],
) -> None:
    common = {"args": Namespace(**{**SAVED, **saved})}
    monkeypatch.setattr(resume, "_common", lambda _: {**common, "content_metadata": content})
    found = list(resume.differences(Namespace(**{**SAVED, **given})))
    assert len(found) == len(expected)
    for (what, evidence, step), part in zip(found, expected, strict=True):
        assert part in what
        assert all(evidence)
        assert step


@pytest.mark.parametrize("load", [None, "s3://bucket/run", "absent", "garbled"])
def test_other_checks_tell_of_what_cannot_be_read(load: str | None, tmp_path: Path) -> None:
    if load == "garbled":
        (tmp_path / load).mkdir()
        (tmp_path / load / "latest_checkpointed_iteration.txt").write_text("soon")
    where = load if load is None or "://" in load else str(tmp_path / load)
    assert list(resume.differences(Namespace(**SAVED, load=where))) == []


@pytest.mark.megatron
def test_a_checkpoint_of_megatrons(dense_checkpoint: Path) -> None:
    from megatron.core.dist_checkpointing.serialization import load_common_state_dict

    args = load_common_state_dict(str(dense_checkpoint / "iter_0000003"))["args"]
    args.load = str(dense_checkpoint)
    assert list(resume.differences(args)) == []
    args.hidden_size *= 2
    args.use_distributed_optimizer = not args.use_distributed_optimizer
    assert [what for what, _, _ in resume.differences(args)] == [
        "the checkpoint in --load is another model's",
        "the optimizer of the checkpoint in --load is another",
    ]
