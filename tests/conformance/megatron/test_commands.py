"""The runner of a command for each model and tool."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import commands
import megatron_programs
from recipe_verdicts import Phase

TOOL = commands.Command("tools", "a tool", "python tool.py", shows="written [0-9]+")


def test_the_list_is_whole() -> None:
    words, rows = commands.read()
    assert {row.kind for row in rows} == {"models", "features", "training", "tools"}
    names = [row.what for row in rows]
    assert len(set(names)) == len(names)
    for row in rows:
        used = set(re.findall(r"\$([A-Z]+)", " ".join((row.line, *words.values()))))
        assert used <= {*words, "CHECKOUT", "WORK", "DATA", "SCRIPT"}, row.what
        assert bool(row.script) == ("$SCRIPT" in row.line)


def test_what_a_program_started_ends_with_it(tmp_path: Path) -> None:
    line, log = ["sh", "-c", "sleep 60 & echo $!; wait"], tmp_path / "log"

    def late(process: subprocess.Popen[bytes]) -> int:
        while log.read_text().count("\n") < 2:
            time.sleep(0.02)
        return process.wait(0.1)

    environ = megatron_programs.environment(tmp_path, "cpu")
    status, output = megatron_programs.run(line, environ, tmp_path, log, 60, late)
    assert (status, "TimeoutError" in output) == (-1, True)
    end = time.monotonic() + 20
    with contextlib.suppress(OSError):  # it is gone
        # What is killed ends a moment later; a zombie has no command line.
        while Path("/proc", log.read_text().split()[-1], "cmdline").read_bytes():
            assert time.monotonic() < end
            time.sleep(0.02)


def test_a_script_keeps_all_but_its_sizes() -> None:
    text = "torchrun --nproc_per_node $GPUS pretrain.py --hidden-size 4096 --swiglu --lr 6.0e-5\n"
    small = commands.small_script("GPUS=8\n" + text, [("GPUS=8", "GPUS=2")])
    assert small == "GPUS=2\n" + text.replace("4096", "128")
    with pytest.raises(ValueError, match="no 'GPUS=8'"):
        commands.small_script(text, [("GPUS=8", "GPUS=2")])


@pytest.mark.parametrize(
    ("command", "status", "output", "answer", "outcome"),
    [
        (TOOL, 0, "written 3 files", "", "passed"),
        (TOOL, 0, "nothing", "", "failed"),
        (TOOL, 1, "ValueError: no", "", "failed"),
        (TOOL, 1, "accel-bridge: error: It cannot.\n  evidence: x\n  next: y", "", "refused"),
        (TOOL, -1, "", "", "failed"),
        (dataclasses.replace(TOOL, asks=("http://a/api", "{}")), 0, "", "written 4", "passed"),
        (dataclasses.replace(TOOL, asks=("http://a/api", "{}")), 0, "written 4", "", "failed"),
        (dataclasses.replace(TOOL, shows="", writes="*.bin"), 0, "", "", "failed"),
    ],
)
def test_what_an_end_means(
    command: commands.Command,
    status: int,
    output: str,
    answer: str,
    outcome: str,
    tmp_path: Path,
) -> None:
    phase = Phase(status, f"$ python tool.py\n{output}")
    assert commands._judge_tool(command, phase, answer, tmp_path).outcome == outcome
