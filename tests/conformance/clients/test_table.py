"""The checks of `make clients` notice what they are there for."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from processes import ends

from conformance.clients import job
from conformance.clients.megatron_lm import generated, served
from conformance.clients.slime import changed
from conformance.clients.steps import (
    Client,
    Failed,
    Step,
    Work,
    as_bfloat16,
    departs,
    log_probabilities,
    looped,
    same_losses,
    same_weights,
    says,
    trains,
    tuned,
)
from conformance.clients.table import CLIENTS
from conformance.clients.torchtitan import as_by_hand
from conformance.clients.trainers import quantized, restarted


@pytest.fixture
def work(tmp_path: Path) -> Work:
    return Work(tmp_path, tmp_path)


def log(work: Work, output: str, *losses: float) -> None:
    directory = work.directory / output / "v0"
    directory.mkdir(parents=True)
    lines = [json.dumps({"loss": loss}) for loss in losses]
    (directory / "logging.jsonl").write_text("\n".join([*lines, '{"train_runtime": 1}']))


def tensors(work: Work, directory: str, **values: bytes) -> None:
    (work.directory / directory).mkdir()
    head, data = {}, b""
    for name, value in values.items():
        places = [len(data), len(data) + len(value)]
        head[name] = {"dtype": "U8", "shape": [len(value)], "data_offsets": places}
        data += value
    text = json.dumps(head).encode()
    (work.directory / directory / "model.safetensors").write_bytes(
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


def test_every_step_that_both_logged_is_compared(work: Work) -> None:
    log(work, "ours", 5.0, 4.0, 3.0)
    log(work, "theirs", 5.0, 4.001)
    with pytest.raises(Failed):
        trains("ours", "theirs")(work, "")
    assert "0.0e+00" in trains("ours", "theirs", steps=1)(work, "")


def test_an_injected_fault_must_be_found(work: Work) -> None:
    log(work, "injected", 5.001, 4.0)
    log(work, "theirs", 5.0)
    log(work, "near", 5.00001, 4.0)
    assert departs("injected", "theirs")(work, "") == "1.0e-03 from `theirs`: found"
    with pytest.raises(Failed, match="not found"):
        departs("near", "theirs")(work, "")
    log(work, "later", 5.0, 4.1)
    assert "found" in departs("later", "injected", steps=2)(work, "")


def test_a_quantized_loss_is_the_one_by_hand(work: Work) -> None:
    log(work, "out/quantized", 5.0, 4.0)
    line = "LOSS 4.5000000 4.5010000 4.501{}000\n".format
    assert "0.0e+00 from that by hand" in quantized()(work, line(0))
    assert "found" in quantized(injected=True)(work, line(1))
    for injected, printed in (
        (False, line(1)),
        (True, line(0)),
        (False, "LOSS 4 4 4\n"),
        (False, ""),
    ):
        with pytest.raises(Failed):
            quantized(injected)(work, printed)


def test_a_resumed_run_ends_like_the_other(work: Work) -> None:
    log(work, "whole", 5.0, 4.0, 3.0)
    log(work, "resumed", 3.0)
    log(work, "wrong", 3.001)
    assert "0.0e+00 from `whole`" in same_losses("resumed", "whole", last=1)(work, "")
    for output, last in (("wrong", 1), ("resumed", 0)):
        with pytest.raises(Failed):
            same_losses(output, "whole", last)(work, "")


def test_losses_after_a_restart_are_compared(work: Work) -> None:
    line = "iteration {}/ 2 | lm loss: {} |\n".format
    work.log("unbroken").write_text(line(1, 5.0) + line(2, 4.0))
    again = line(1, 5.0) + "RankShouldRestart\n" + line(1, 5.0)
    assert "all 2 losses 0.0e+00" in restarted()(work, again + line(2, 4.0))
    assert restarted(injected=True)(work, again + line(2, 4.1)).endswith("found")
    unbroken = line(1, 5.0) + line(2, 4.0)
    for injected, printed in ((False, again), (False, unbroken), (True, again + line(2, 4.0))):
        with pytest.raises(Failed):
            restarted(injected)(work, printed)


def test_what_was_not_printed_is_noticed(work: Work) -> None:
    assert says("saved")(work, "it was saved\n") == "saved"
    with pytest.raises(Failed):
        says("saved")(work, "it was not\n")


def test_weights_that_changed_or_are_missing_are_noticed(work: Work) -> None:
    tensors(work, "model", a=b"12", b=b"345")
    tensors(work, "same", b=b"345", a=b"12")
    tensors(work, "changed", a=b"12", b=b"346")
    tensors(work, "fewer", a=b"12")
    assert same_weights("model", "same")(work, "") == "all 2 tensors equal"
    for back in ("changed", "fewer", "nowhere"):
        with pytest.raises(Failed):
            same_weights("model", back)(work, "")


def test_weights_are_rounded_as_torch_rounds_them() -> None:
    ties = 1 + (torch.arange(512) + 0.5) / 256  # half way between two numbers of bfloat16
    values = torch.cat([torch.randn(10_000), ties, -ties])
    expected = values.bfloat16().view(torch.int16).numpy().tobytes()
    assert as_bfloat16(("F32", [1], values.numpy().tobytes())) == ("BF16", [1], expected)


def answers(work: Work, logprob: float, token: int) -> None:
    row = {"generated_tokens": [token], "prompt_logprobs": [-1.0], "generated_logprobs": [logprob]}
    (work.directory / "out").mkdir(exist_ok=True)
    (work.directory / "out/found.json").write_text(json.dumps({"0": row, "throughput": [1.0]}))
    expected = [{"tokens": [7], "logprobs": [-1.0, -2.0], "text": "x"}]
    (work.directory / "out/reference.json").write_text(json.dumps(expected))


@pytest.mark.parametrize(("logprob", "token"), [(-2.001, 7), (-2.0, 8)])
def test_a_wrong_continuation_is_noticed(work: Work, logprob: float, token: int) -> None:
    answers(work, logprob, token)
    with pytest.raises(Failed):
        generated("out/found.json")(work, "")
    assert "found" in generated("out/found.json", injected=True)(work, "")
    answers(work, -2.00001, 7)
    assert "tokens equal" in generated("out/found.json")(work, "")
    with pytest.raises(Failed):
        generated("out/found.json", injected=True)(work, "")


def test_a_wrong_answer_of_a_server_is_noticed(work: Work) -> None:
    answers(work, -2.0, 7)
    (work.directory / "out/served.json").write_text('[{"text": "x"}]')
    assert "1 answers" in served(work, "")
    (work.directory / "out/served.json").write_text('[{"text": "y"}]')
    with pytest.raises(Failed):
        served(work, "")


def test_the_first_loss_of_a_fine_tuning_is_compared(work: Work) -> None:
    work.log("reference").write_text("REFERENCE 5.0000000\n")
    lines = "iteration 1/ 2 | lm loss: {} |\niteration 2/ 2 | lm loss: 4.5 |\n"
    assert "5.0e-04 from" in tuned("reference", 1e-3)(work, lines.format(5.0005))
    with pytest.raises(Failed):
        tuned("reference", 1e-3)(work, lines.format(5.02))
    with pytest.raises(Failed):
        tuned("reference", 1e-3)(work, lines.format(4.5))
    assert tuned("reference", 1e-3, True)(work, lines.format(5.02)).endswith("found")
    with pytest.raises(Failed):
        tuned("reference", 1e-3, True)(work, lines.format(5.0005))


def test_an_injected_weight_that_does_not_come_back_is_noticed(work: Work) -> None:
    tensors(work, "model", a=b"1", b=b"2")
    tensors(work, "same", a=b"1", b=b"2")
    tensors(work, "other", a=b"1", b=b"3")
    assert changed("model", "other", rounded=False)(work, "").startswith("1 of 2 tensors changed")
    with pytest.raises(Failed, match="0 of 2"):
        changed("model", "same", rounded=False)(work, "")
    (work.directory / "none").mkdir()
    with pytest.raises(Failed, match="no tensors"):
        changed("model", "none", rounded=False)(work, "")


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


def test_in_little_time_those_not_typed_for_longest_begin_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = tuple(Step(name, "true", lambda *_: "done") for name in "abcd")
    clients = [Client(name, (), (), steps) for name in ("withdrawn", "new", "old", "never's one")]
    known = {name: {"steps": {"one": {"date": day}}} for name, day in (("new", "2"), ("old", "1"))}
    (tmp_path / "results.json").write_text(json.dumps(known))
    typed: list[tuple[str, str]] = []
    clock, directories, given = [0.0], list[str](), list[float]()

    def run(client: Client, step: Step, work: Work, seconds: float) -> bool:
        given.append(seconds)
        typed.append((client.name, step.name))
        clock[0] += 120
        return True

    def ready(client: Client, directory: Path, environment: str | None) -> Work:
        directories.append(directory.name)
        clock[0] += 120
        if client.name == "withdrawn":
            raise subprocess.CalledProcessError(1, "uv")
        return Work(directory, directory)

    for name, value in (("CLIENTS", clients), ("RESULTS", tmp_path / "results.json"), ("run", run)):
        monkeypatch.setattr(job, name, value)
    monkeypatch.setattr(job, "ready", ready)
    monkeypatch.setattr(job, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    assert job.main(["--minutes", "15"]) == 1
    assert typed == [*(("never's one", name) for name in "abc"), ("old", "a")]
    assert directories == ["withdrawn", "never-s-one", "old"]
    assert given == [660, 540, 420, 180]
    out = capsys.readouterr().out
    assert "withdrawn: FAILED: not installed" in out
    assert "never's one: 1 more steps: no time" in out
    assert "new: not typed" in out
    typed.clear()
    given.clear()
    assert job.main([]) == 1
    assert set(given) == {job.SECONDS}
    assert typed == [(one.name, step.name) for one in clients[1:] for step in steps]


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


def test_log_probabilities_are_transformers_before_every_step(work: Work) -> None:
    line = "STEP {} {} from Transformers', moved {}\n".format
    near = line(0, "6.2e-04", "0.0e+00") + line(1, "1.4e-03", "0.2") + line(2, "1.3e-03", "0.4")
    far = near.replace("1.3e-03", "1.3e-02")
    still = near.replace("0.4", "0.0")
    assert "moved them by 0.40" in log_probabilities(3e-3)(work, near)
    assert log_probabilities(3e-3, found=True)(work, far).endswith("found")
    wrong = ((False, far), (True, near), (False, still), (False, near.splitlines()[0]))
    for found, printed in wrong:
        with pytest.raises(Failed):
            log_probabilities(3e-3, found)(work, printed)


def test_a_loop_is_transformers_at_every_step(work: Work) -> None:
    line = "  • Loss: {0:.4f}\nLOOP {1} generator {2}, policy 9e-07, loss {0:.6f}\n".format
    near = line(0.5, 1, "4e-07") + line(0.4, 2, "4e-07") + line(0.3, 3, "4e-07")
    stale = near.replace("3 generator 4e-07", "3 generator 4e-02")
    other = near.replace("Loss: 0.3", "Loss: 0.31")
    still = near.replace("0.4", "0.5")
    assert "generator's log probabilities 4.0e-07" in looped()(work, near)
    assert looped(found=True)(work, stale).endswith("found")
    wrong = ((False, stale), (False, other), (True, near), (False, still), (False, line(1, 1, 1)))
    for found, printed in wrong:
        with pytest.raises(Failed):
            looped(found)(work, printed)


def test_torchtitans_losses_are_those_by_hand(work: Work) -> None:
    losses = (8.0, 7.0, 6.0, 5.0, 4.0)
    printed = "".join(f"step:\x1b[32m  {n}  loss:  {one}\x1b[0m\n" for n, one in enumerate(losses))
    work.log("reference").write_text(printed)
    assert "0.0e+00 from that by hand" in as_by_hand()(work, printed)
    wrong = printed.replace("loss:  5.0", "loss:  5.001")
    assert as_by_hand(injected=True)(work, wrong).endswith("found")
    rising = printed.replace("loss:  4.0", "loss:  8.5")
    for injected, text in ((False, wrong), (False, rising), (True, printed), (False, "")):
        with pytest.raises(Failed):
            as_by_hand(injected)(work, text)
