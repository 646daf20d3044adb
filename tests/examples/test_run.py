"""Every tutorial of docs/examples, executed as it stands, on small data that it makes itself.

The three shortest run with all tests, the others with ``make examples``.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from end_to_end.launcher import ROOT, Run, launch

EXAMPLES = ROOT / "docs" / "examples"
#: Directory of a tutorial -> its script.
SCRIPTS = {script.parent.name: script for script in sorted(EXAMPLES.glob("*/run.sh"))}
SHORTEST = ("csv-files", "llama-data", "tokenizer")
#: Sizes for tests; the scripts' own are for people.
TINY = {
    "BYTES": "60000",
    "ITERATIONS": "3",
    "VOCAB_SIZE": "1000",
    "SPLIT": "80,10,10",
    "STOP_AT": "1",
    "ONE_CARD": "2",
    "DTYPES": "fp16",
    "MACHINE": "npu",
}
#: Tutorials that Ascend's users know, and the devices that they ask for.
ASCEND = {"mindspeed-quick-start": 4, "adaptor-2023": 1, "ten-minutes": 1}

PNG = b"\x89PNG"


def example(name: str) -> Any:
    """A parameter; the longer ones run with ``make examples`` alone."""
    marks = [pytest.mark.megatron] if name in SHORTEST else [pytest.mark.example]
    return pytest.param(name, marks=marks)


def make_programs(directory: Path, python: str) -> Path:
    """The programs that tutorials call, of the Python ``python``."""
    words = {
        "python": "",
        "accel-bridge": "-m accel_bridge",
        "torchrun": "-m torch.distributed.run",
    }
    directory.mkdir()
    for name, module in words.items():
        program = directory / name
        program.write_text(f'#!/bin/sh\nexec {python} {module} "$@"\n')
        program.chmod(0o755)
    return directory


def run(
    name: str,
    directory: Path,
    python: str = sys.executable,
    before: Sequence[str] = (),
    after: Sequence[str] = (),
    **sizes: str,
) -> Run:
    """Run a tutorial in ``directory``.

    :param before: words before ``bash run.sh``.
    :param after: words behind it.
    """
    programs = directory / "programs"
    if not programs.is_dir():
        make_programs(programs, python)
    environment = {**TINY, **sizes, "PATH": f"{programs}:{os.environ['PATH']}"}
    command = [*before, "bash", str(SCRIPTS[name]), *after]
    return launch(command, env=environment, cwd=directory, timeout=580).succeeded()


def losses(log: Path) -> list[float]:
    """The losses that a training log holds."""
    return [float(loss) for loss in re.findall(r"lm loss: ([-+.\dEe]+)", log.read_text())]


def check_curve(out: Path) -> None:
    """The tutorial's picture is there."""
    assert (out / "curve.png").read_bytes().startswith(PNG)


def check_one_run(out: Path, done: Run) -> None:
    """One training of three iterations."""
    assert len(losses(out / "training.log")) == 3


def check_resumed(out: Path, done: Run) -> None:
    """Stopped after the first of three iterations, and resumed: none is trained twice."""
    numbers = re.findall(r"iteration +(\d)/ +3 ", (out / "training.log").read_text())
    assert numbers == ["1", "2", "3"]
    assert (out / "checkpoint/latest_checkpointed_iteration.txt").read_text() == "3"


def check_two_cards(out: Path, done: Run) -> None:
    """Stopped twice, the last iteration on two ranks from one rank's checkpoint."""
    check_resumed(out, done)
    worlds = re.findall(r"world_size \.+ (\d)", (out / "training.log").read_text())
    assert worlds == ["1", "1", "2"]
    assert any((out / "tensorboard").iterdir())


def check_bert(out: Path, done: Run) -> None:
    for log in ("bert.log", "t5.log"):
        assert len(losses(out / log)) == 3
    assert "sop loss" in (out / "bert.log").read_text()


def check_csv(out: Path, done: Run) -> None:
    check_one_run(out, done)
    assert (out / "data_body_document.idx").is_file()
    assert not (out / "skipped.jsonl").read_text()


def check_quick_start(out: Path, done: Run) -> None:
    check_one_run(out, done)
    assert "fp16 ............................................ True" in done.output
    assert re.search(r"virtual_pipeline_model_parallel_size \.+ 2\n", done.output)


def check_loop(out: Path, done: Run) -> None:
    check_one_run(out, done)
    assert "is the one that was trained" in done.output


def check_adaptor(out: Path, done: Run) -> None:
    """The band changes the loss, the layout does not; and the table of two machines."""
    logs = {path.stem: losses(path) for path in (out / "npu").glob("*.log")}
    assert len(logs) == 4
    assert logs["fp16-flash-SBH"] == logs["fp16-flash-BSH"]
    assert logs["fp16-sparse-SBH"] != logs["fp16-flash-SBH"]
    table = SCRIPTS["adaptor-2023"].with_name("table.py")
    command = [sys.executable, str(table), str(out / "npu"), str(out / "npu")]
    shown = subprocess.check_output(command, text=True).splitlines()
    assert shown[0] == "| name | competitor loss | NPU loss | competitor s/step | NPU s/step |"
    assert len(shown) == 6
    cells = [cell.strip() for cell in shown[2].split("|")[1:-1]]
    assert cells[:3] == ["fp16-flash-BSH", *[f"{logs['fp16-flash-BSH'][-1]:.4f}"] * 2]


def check_tokenizer(out: Path, done: Run) -> None:
    check_one_run(out, done)
    for name in ("bpe/merges.txt", "sentencepiece/tokenizer.model", "wordpiece/vocab.txt"):
        assert (out / name).stat().st_size > 1000


def check_llama(out: Path, done: Run) -> None:
    check_one_run(out, done)
    assert done.output.count("documents") >= 4


#: Tutorial -> what it must have left behind.
CHECKS: Mapping[str, Callable[[Path, Run], None]] = {
    "adaptor-2023": check_adaptor,
    "bert-t5": check_bert,
    "csv-files": check_csv,
    "gpt2-124m": check_two_cards,
    "llama-data": check_llama,
    "mindspeed-quick-start": check_quick_start,
    "simple-loop": check_loop,
    "ten-minutes": check_resumed,
    "tokenizer": check_tokenizer,
    "two-gpus": check_one_run,
}


def test_every_tutorial_has_a_check_and_a_row() -> None:
    rows = json.loads((EXAMPLES / "examples.json").read_text(encoding="utf-8"))
    # Those with a script of another name have tests of their own.
    assert (
        set(SCRIPTS) == set(CHECKS) == {name for name, row in rows.items() if "script" not in row}
    )
    for name, row in rows.items():
        directory = EXAMPLES / name
        assert (directory / row.get("script", "run.sh")).is_file()
        assert (directory / "output.txt").read_text(encoding="utf-8").count("\n") > 5
        assert "alt" not in row or (directory / "curve.png").is_file()


@pytest.mark.parametrize("name", [example(name) for name in SCRIPTS])
def test_it_runs_as_it_stands(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """In new interpreters; the three shortest in the warm one, for time's sake."""
    warm = name in SHORTEST
    done = run(name, tmp_path, request.getfixturevalue("warm") if warm else sys.executable)
    CHECKS[name](tmp_path / name, done)
    check_curve(tmp_path / name)


@pytest.mark.example
@pytest.mark.parametrize("name", ASCEND)
def test_it_runs_on_emulated_npus(name: str, tmp_path: Path, libraries: Path) -> None:
    """The same file, unedited, behind `emulate-ascend`."""
    emulate = (sys.executable, "-m", "accel_bridge", "emulate-ascend")
    before = (*emulate, "--devices", str(ASCEND[name]), "--")
    done = run(name, tmp_path, before=before, ORDERS="SBH BSH")
    assert "EMULATED" in done.output
    CHECKS[name](tmp_path / name, done)


@pytest.mark.example
def test_bert_and_t5_with_the_flags_of_2023(tmp_path: Path, libraries: Path) -> None:
    """A CPU and an emulated NPU side by side; a band, which is the injected fault, is seen."""
    emulate = (sys.executable, "-m", "accel_bridge", "emulate-ascend", "--")
    same = ("--use-cpu-initialization", "--hidden-dropout", "0", "--attention-dropout", "0")
    full = (*same, "--shape_order=SBH", "--pre=65536", "--next=65536")
    band = (*same, "--shape_order=SBH", "--pre=8", "--next=0")
    for logs, before, after in (("cpu", (), full), ("npu", emulate, full), ("band", (), band)):
        run("bert-t5", tmp_path, before=before, after=after, LOGS=logs)
    for log in ("bert.log", "t5.log"):
        found = [losses(tmp_path / logs / log) for logs in ("cpu", "npu", "band")]
        assert [len(one) for one in found] == [3, 3, 3]
        apart = [max(map(abs, map(float.__sub__, found[0], other))) for other in found[1:]]
        assert apart[0] <= 1e-5 < 1e-3 < apart[1]


@pytest.mark.example
def test_your_own_text_is_taken_and_nothing_is_written_over(tmp_path: Path) -> None:
    text = tmp_path / "book.txt"
    text.write_text("It was a dark and stormy night; the rain fell in torrents.\n" * 3000)
    run("ten-minutes", tmp_path, TEXT=str(text), ITERATIONS="2", VOCAB_SIZE="300")
    assert not (tmp_path / "ten-minutes/text.txt").exists()
    again = launch(["bash", str(SCRIPTS["ten-minutes"])], env=TINY, cwd=tmp_path)
    assert again.returncode == 2
    assert "holds files already" in again.output


def table(*directories: Path) -> subprocess.CompletedProcess[str]:
    """The adaptor's table of two directories."""
    script = EXAMPLES / "adaptor-2023" / "table.py"
    command = [sys.executable, str(script), *map(str, directories)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


LINE = "iteration {n}/ 9 | elapsed time per iteration (ms): {ms} | lm loss: {loss:.6E} |\n"


def test_the_table_of_two_machines(tmp_path: Path) -> None:
    """Losses of the last common iteration; medians of the times after the third."""
    for machine, last, ms, loss in (("gpu", 9, 500.0, 5.0), ("npu", 7, 250.0, 6.0)):
        (tmp_path / machine).mkdir()
        lines = [
            LINE.format(n=n, ms=9999.0 if n < 4 else ms, loss=loss - n / 10)
            for n in range(1, last + 1)
        ]
        (tmp_path / machine / "a.log").write_text("noise\n" + "".join(lines))
    done = table(tmp_path / "gpu", tmp_path / "npu")
    assert done.returncode == 0
    assert done.stdout.splitlines()[2] == "| a | 4.3000 | 5.3000 | 0.500 | 0.250 |"
    (tmp_path / "npu" / "b.log").write_text("nothing\n")
    done = table(tmp_path / "gpu", tmp_path / "npu")
    assert done.returncode == 1
    assert "b: no iteration that both machines logged" in done.stderr
