"""The checks of `make clients` notice what they are there for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clients.steps import Failed, Work, same_weights, trains
from clients.table import CLIENTS, converts


@pytest.fixture
def work(tmp_path: Path) -> Work:
    return Work(tmp_path, tmp_path)


def log(work: Work, output: str, *losses: float) -> None:
    folder = work.folder / output / "v0"
    folder.mkdir(parents=True)
    lines = [json.dumps({"loss": loss}) for loss in losses]
    (folder / "logging.jsonl").write_text("\n".join([*lines, '{"train_runtime": 1}']))


def tensors(work: Work, folder: str, **values: bytes) -> None:
    (work.folder / folder).mkdir()
    head, data = {}, b""
    for name, value in values.items():
        places = [len(data), len(data) + len(value)]
        head[name] = {"dtype": "U8", "shape": [len(value)], "data_offsets": places}
        data += value
    text = json.dumps(head).encode()
    (work.folder / folder / "model.safetensors").write_bytes(
        len(text).to_bytes(8, "little") + text + data
    )


def test_a_loss_that_falls_from_the_same_value_passes(work: Work) -> None:
    log(work, "ours", 5.00005, 4.0)
    log(work, "theirs", 5.0)
    assert "5.0e-05 from Hugging Face's" in trains("ours", "theirs")(work, "")


@pytest.mark.parametrize("losses", [(5.0, 5.0), (5.001, 4.0), ()])
def test_a_loss_that_does_not_is_noticed(work: Work, losses: tuple[float, ...]) -> None:
    log(work, "ours", *losses)
    log(work, "theirs", 5.0)
    with pytest.raises(Failed):
        trains("ours", "theirs")(work, "")


def test_weights_that_changed_or_are_missing_are_noticed(work: Work) -> None:
    tensors(work, "model", a=b"12", b=b"345")
    tensors(work, "same", b=b"345", a=b"12")
    tensors(work, "changed", a=b"12", b=b"346")
    tensors(work, "fewer", a=b"12")
    assert same_weights("model", "same")(work, "") == "all 2 tensors equal"
    for back in ("changed", "fewer", "nowhere"):
        with pytest.raises(Failed):
            same_weights("model", back)(work, "")


@pytest.mark.parametrize("wrong", [{"logits": 1e-3}, {"planted": 0.0}, {"changed": ["a"]}])
def test_a_conversion_that_changed_something_is_noticed(
    work: Work, wrong: dict[str, object]
) -> None:
    report = {"logits": 1e-7, "planted": 0.1, "tensors": 3, "changed": []}
    assert "3 of 3 tensors" in converts(work, f"REPORT {json.dumps(report)}\n")
    with pytest.raises(Failed):
        converts(work, f"REPORT {json.dumps({**report, **wrong})}\n")


def test_every_command_is_typed_below_the_bridge_or_is_the_reference() -> None:
    for client in CLIENTS:
        for step in client.steps:
            assert "accel-bridge run " in step.command or step.name.startswith("reference")
