"""The checks of `make clients` notice what they are there for."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from processes import ends
from safetensors.torch import save_file

from conformance.clients import job, ray_workers
from conformance.clients.megatron_bridge import converts
from conformance.clients.megatron_lm import generated, served
from conformance.clients.steps import (
    Check,
    Client,
    Failed,
    Step,
    Work,
    learns,
    log_probabilities,
    looped,
    same_weights,
    says,
)
from conformance.clients.table import CLIENTS
from conformance.clients.trainers import quantized, restarted

#: A framework's line of a step.
FORMS = {
    "Megatron": " [2026-11-22 18:07:24] iteration {:8}/ 4 | lm loss: {:.6E} | loss scale: 1.0 |\n",
    "verl": "step:{} - train/loss:{} - train/grad_norm:1.5 - train/lr:0.001\n",
    "torchtitan": "step:\x1b[32m  {}  loss:  {}\x1b[0m\n",
}
#: What runs have logged, below out/.
LOGGED = {
    "plain": (5.0,),
    "ours": (5.00005, 4.0),
    "flat": (5.0, 5.0),
    "off": (5.001, 4.0),
    "none": (),
    "whole": (5.0, 4.0, 3.0),
    "later": (5.0, 4.001),
    "resumed": (3.0,),
    "wrong": (3.001,),
    "quantized": (5.0, 4.0),
}


def lines(form: str, *losses: float, start: int = 1) -> str:
    return "".join(FORMS[form].format(*one) for one in enumerate(losses, start))


@pytest.fixture
def work(tmp_path: Path) -> Work:
    made = Work(tmp_path, tmp_path)
    for name, losses in LOGGED.items():
        directory = tmp_path / "out" / name / "v0"
        directory.mkdir(parents=True)
        rows = [json.dumps({"loss": loss}) for loss in losses]
        (directory / "logging.jsonl").write_text("\n".join([*rows, '{"train_runtime": 1}']))
    for form in FORMS:
        made.log(form).write_text(lines(form, 5.5, 5.4, 5.3, 5.2))
    made.log("reference").write_text("REFERENCE 5.5000400\n")
    made.log("unbroken").write_text(lines("Megatron", 5.5, 5.4))
    return made


def losses() -> Iterator[tuple[Check, str, str]]:
    """A check, what was printed, and a part of its answer; nothing where it must fail."""
    yield learns("out/plain", "out/ours"), "", "5.0e-05 from `out/plain`"
    for out in ("flat", "off", "none", "nowhere"):
        yield learns("out/plain", f"out/{out}"), "", ""
    yield learns("out/later", "out/whole"), "", ""
    yield learns("out/later", "out/whole", steps=1), "", "0.0e+00"
    for out, found in (("off", "1.0e-03 from `out/plain`: found"), ("ours", "")):
        yield learns("out/plain", f"out/{out}", falls=False, injected=True), "", found
    for out, last, found in (("resumed", 1, "0.0e+00"), ("wrong", 1, ""), ("resumed", 0, "")):
        check = learns("out/whole", f"out/{out}", last=last, whole=True, falls=False)
        yield check, "", found
    for form in FORMS:
        same = lines(form, 5.5, 5.4, 5.30005, 5.2)
        other = lines(form, 5.5, 5.4, 5.31, 5.2)
        late = lines(form, 5.3, 5.2, start=3)
        yield learns(form), same, f"5.0e-05 from `{form}`"
        yield learns(form, start=3), late, "0.0e+00"
        for wrong in (other, late, "Traceback", lines(form, 5.5), lines(form, 5.5, float("nan"))):
            yield learns(form), wrong, ""
        yield learns(form, start=3), same, ""
        yield learns(form, whole=True), lines(form, 5.5, 5.4), ""
        yield learns(form, injected=True), other, "found"
        yield learns(form, injected=True), same, ""
        yield learns("reference"), same, "4.0e-05 from Hugging Face's"
        yield learns("reference"), lines(form, 5.6, 5.4), ""
        yield learns(), same, "loss 5.5"
        yield learns(), "TRANSFORMERS 5.5\n" + same, "0.0e+00 from Hugging Face's"
        yield learns(), "TRANSFORMERS 5.6\n" + same, ""


def others() -> Iterator[tuple[Check, str, str]]:
    yield says("saved"), "it was saved\n", "saved"
    yield says("saved"), "it was not\n", ""
    by_hand = "LOSS 4.5000000 4.5010000 4.501{}000\n".format
    yield quantized(), by_hand(0), "0.0e+00 from that by hand"
    yield quantized(injected=True), by_hand(1), "found"
    for injected, printed in ((0, by_hand(1)), (1, by_hand(0)), (0, "LOSS 4 4 4\n"), (0, "")):
        yield quantized(bool(injected)), printed, ""
    again = lines("Megatron", 5.5) + "RankShouldRestart\n" + lines("Megatron", 5.5)
    whole, off = (again + lines("Megatron", loss, start=2) for loss in (5.4, 5.5))
    yield restarted(), whole, "0.0e+00 from `unbroken`"
    yield restarted(injected=True), off, "found"
    unbroken = lines("Megatron", 5.5, 5.4)
    for injected, printed in ((0, again), (0, unbroken), (0, off), (1, whole)):
        yield restarted(bool(injected)), printed, ""
    step = "STEP {} {} from Transformers', moved {}\n".format
    near = step(0, "6.2e-04", "0.0e+00") + step(1, "1.4e-03", "0.2") + step(2, "1.3e-03", "0.4")
    far, still = near.replace("1.3e-03", "1.3e-02"), near.replace("0.4", "0.0")
    yield log_probabilities(3e-3), near, "moved them by 0.40"
    yield log_probabilities(3e-3, found=True), far, "found"
    for injected, printed in ((0, far), (1, near), (0, still), (0, near.splitlines()[0])):
        yield log_probabilities(3e-3, bool(injected)), printed, ""
    row = "  • Loss: {0:.4f}\nLOOP {1} generator {2}, policy 9e-07, loss {0:.6f}\n".format
    near = row(0.5, 1, "4e-07") + row(0.4, 2, "4e-07") + row(0.3, 3, "4e-07")
    stale = near.replace("3 generator 4e-07", "3 generator 4e-02")
    other, still = near.replace("Loss: 0.3", "Loss: 0.31"), near.replace("0.4", "0.5")
    yield looped(), near, "generator's log probabilities 4.0e-07"
    yield looped(found=True), stale, "found"
    for injected, printed in ((0, stale), (0, other), (1, near), (0, still), (0, row(1, 1, 1))):
        yield looped(bool(injected)), printed, ""
    report = {"logits": 1e-7, "injected": 0.1, "tensors": 3, "changed": []}
    yield converts, f"REPORT {json.dumps(report)}\n", "3 of 3 tensors"
    for wrong in ({"logits": 1e-3}, {"injected": 0.0}, {"changed": ["a"]}):
        yield converts, f"REPORT {json.dumps({**report, **wrong})}\n", ""
    places = {
        place: {"process": number, "device": "cpu", "active": True}
        for number, place in enumerate(ray_workers.PLACES)
    }
    text = "".join(f"FOUND {place} {row}\n" for place, row in places.items())
    yield ray_workers.everywhere, text, "6 processes"
    for old, new in (("True", "False"), ("'cpu'", "'meta'"), ("FOUND spawn", "x")):
        yield ray_workers.everywhere, text.replace(old, new, 1), ""


@pytest.mark.parametrize(("check", "printed", "answer"), [*losses(), *others()])
def test_what_is_right_passes_and_what_is_wrong_is_noticed(
    work: Work, check: Check, printed: str, answer: str
) -> None:
    if answer:
        assert answer in check(work, printed)
    else:
        with pytest.raises(Failed):
            check(work, printed)


@pytest.mark.parametrize(
    ("values", "same", "one"),
    [
        ({"b": [3.0, 4.0], "a": [1.0]}, True, False),
        ({"a": [1.0], "b": [3.0, 4.5]}, False, True),
        ({"a": [1.0], "b": [3.0]}, False, True),
        ({"a": [1.0]}, False, False),
        ({}, False, False),
    ],
)
@pytest.mark.parametrize("rounded", [False, True])
def test_weights_that_changed_or_are_missing_are_noticed(
    work: Work, values: dict[str, list[float]], same: bool, one: bool, rounded: bool
) -> None:
    dtype = torch.bfloat16 if rounded else torch.float32
    model = {"a": [1.0], "b": [3.0, 4.001 if rounded else 4.0]}
    for name, found in (("model", model), ("back", values)):
        (work.directory / name).mkdir()
        made = torch.float32 if name == "model" else dtype
        tensors = {key: torch.tensor(value, dtype=made) for key, value in found.items()}
        save_file(tensors, work.directory / name / "model.safetensors")
    for injected, right in ((False, same), (True, one)):
        check = same_weights("model", "back", rounded, injected)
        if right:
            assert "of 2 tensors changed" in check(work, "")
        else:
            with pytest.raises(Failed):
                check(work, "")
    with pytest.raises(Failed):  # of another type
        same_weights("model", "back", not rounded)(work, "")


@pytest.mark.parametrize(
    ("logprob", "token", "text", "right"),
    [(-2.001, 7, "y", False), (-2.0, 8, "y", False), (-2.00001, 7, "x", True)],
)
def test_a_wrong_continuation_is_noticed(
    work: Work, logprob: float, token: int, text: str, right: bool
) -> None:
    row = {"generated_tokens": [token], "prompt_logprobs": [-1.0], "generated_logprobs": [logprob]}
    for name, content in {
        "found": {"0": row, "throughput": [1.0]},
        "reference": [{"tokens": [7], "logprobs": [-1.0, -2.0], "text": "x"}],
        "served": [{"text": text}],
    }.items():
        (work.directory / f"out/{name}.json").write_text(json.dumps(content))
    for check, passes in (
        (generated("out/found.json"), right),
        (generated("out/found.json", injected=True), not right),
        (served, right),
    ):
        if passes:
            assert check(work, "")
        else:
            with pytest.raises(Failed):
                check(work, "")


def test_a_source_is_fetched_at_its_version_also_after_a_fetch_that_failed(work: Work) -> None:
    def git(*words: str) -> None:
        author = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", "-C", work.directory / "of/tree", *author, *words], check=True)

    tree = work.directory / "of/tree"
    tree.mkdir(parents=True)
    git("init", "--quiet")
    for version in ("a", "b"):
        (tree / "file").write_text(version)
        git("add", "file")
        git("commit", "--quiet", "--message", version)
        git("tag", version)
    with pytest.raises(subprocess.CalledProcessError):
        job.checkout(work, f"{tree}-moved/tree", "a", "")
    for version in ("a", "b", "a"):
        job.checkout(work, str(tree), version, "")
        assert (work.directory / "tree/file").read_text() == version
    job.checkout(work, str(tree), "b", "-b")
    assert (work.directory / "tree-b/file").read_text() == "b"


def test_a_step_that_the_end_of_the_time_cuts_off_keeps_its_result(
    work: Work, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(job, "note", lambda *_: pytest.fail("its result was noted"))
    step = Step("waits", "sleep 60 & echo $! > child; wait", lambda *_: "done")
    assert job.run(Client("one", (), (), (step,)), step, work, 1)
    assert "waits: cut off: the time is over" in capsys.readouterr().out
    assert ends(int((work.directory / "child").read_text()))


def test_every_command_is_typed_below_the_bridge_or_is_the_reference() -> None:
    for client in CLIENTS:
        for step in client.steps:
            ways = ("accel-bridge run ", "accel-bridge parity compare ", "ACCEL_BRIDGE_AUTO=1 ")
            bridged = any(way in step.command for way in ways)
            assert bridged or step.name.startswith("reference")
