"""``accel-bridge doctor`` as a whole: its processes, its report, its command line."""

from __future__ import annotations

import faulthandler
import io
import json
import os
import re
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from plugin_site import Python, Site
from processes import ends

from accel_bridge.apps.cli import doctor as command
from accel_bridge.apps.doctor import Result, Training, choose, examine, take_apart
from accel_bridge.apps.doctor._examination import call_all
from accel_bridge.errors import BridgeError
from accel_bridge.patches.doctor.child import Reader, Stop
from accel_bridge.plugins.checks import Check, Finding, Machine, Run, Verdict, fails, ok, warning
from accel_bridge.plugins.manager import load_plugins


def _exit() -> None:
    raise SystemExit("a package ends the program")


def _abort() -> None:
    faulthandler.disable()  # pytest's would tell of it
    os.write(2, b"terminate called after throwing\n")
    os.kill(os.getpid(), signal.SIGABRT)


def _hold_all_threads() -> None:
    """As a C function does that waits and keeps Python's lock."""
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))
    while True:
        time.sleep(60)


def test_calls_that_end_badly_do_not_stop_the_others() -> None:
    began = time.monotonic()
    outcomes = call_all(
        {
            "raises": (lambda: 1 / 0, 20),
            "exits": (_exit, 20),
            "aborts": (_abort, 20),
            "hangs": (_hold_all_threads, 1),
            "unknown": (lambda: lambda: 0, 20),
            "works": (lambda: "well", 20),
        }
    )
    assert time.monotonic() - began < 15
    errors = {name: outcome.error for name, outcome in outcomes.items()}
    assert errors["raises"] == "it raised ZeroDivisionError: division by zero"
    assert "1 / 0" in outcomes["raises"].details
    assert errors["exits"] == "it raised SystemExit: a package ends the program"
    assert errors["aborts"] == "killed by SIGABRT"
    assert outcomes["aborts"].details == "terminate called after throwing"
    assert errors["hangs"] == "it did not end in 1 s"
    assert errors["unknown"] is not None
    assert outcomes["works"] == replace(outcomes["works"], value="well", error=None)


def test_what_a_call_started_ends_with_it(tmp_path: Path) -> None:
    note = tmp_path / "pid"

    def start() -> None:
        child = os.fork()
        if child == 0:
            time.sleep(600)
        note.write_text(str(child))
        time.sleep(600)

    outcome = call_all({"": (start, 1)})[""]
    assert outcome.error == "it did not end in 1 s"
    assert ends(int(note.read_text()))


def check(name: str, *findings: Finding) -> Check:
    return Check(name, "Injected", "what the test says", lambda machine: findings)


SOUND = check("sound", ok("all is well", "looked"))
FAULT = check("fault", fails("it stops", "a line", next="fix it"))
DOUBT = check("doubt", warning("it is slow", "another line", next="speed it up"))


def _raises(machine: Machine) -> Any:
    raise RuntimeError("a broken check")


BROKEN = Check("broken", "Injected", "nothing", _raises)
WRONG = Check("wrong", "Injected", "nothing", lambda machine: ["text"])  # type: ignore[list-item]


def results(*wanted: Check) -> list[Result]:
    return examine(Machine(), load_plugins(), wanted, Training())


def test_a_broken_check_does_not_stop_the_others() -> None:
    found = {result.check.name: result for result in results(BROKEN, WRONG, FAULT, SOUND)}
    assert found["fault"].verdict is Verdict.FAILS
    assert found["sound"].verdict is Verdict.OK
    for name, text in (("broken", "a broken check"), ("wrong", "no Finding")):
        assert found[name].verdict is Verdict.WARNING
        [told] = found[name].findings
        assert text in told.what
        assert f"--skip {name}" in told.next


def _missing(machine: Machine) -> Any:
    raise BridgeError("a package is missing.", evidence="no module", next="pip install it")


def test_what_two_checks_find_is_told_once_and_a_missing_package_is_a_finding() -> None:
    missing = Check("missing", "Injected", "nothing", _missing)
    found = results(FAULT, replace(FAULT, name="again"), missing)
    assert [len(result.findings) for result in found] == [1, 0, 1]
    [told] = found[2].findings
    assert told == warning("a package is missing", "no module", next="pip install it")
    assert found[2].broken is None


@pytest.mark.parametrize(
    ("wanted", "status", "verdict"),
    [
        ([SOUND], 0, "ok"),
        ([SOUND, DOUBT], 0, "warning"),
        ([DOUBT, FAULT], 1, "would fail"),
        ([BROKEN], 0, "warning"),
    ],
)
def test_status_and_what_is_shown(
    wanted: list[Check], status: int, verdict: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = results(*wanted)
    assert command.exit_status(found) == status
    assert command.as_json(found)["verdict"] == verdict
    command.show(found, everything=False)
    shown = capsys.readouterr().out
    for finding in (one for result in found for one in result.findings):
        assert (finding.what in shown) == (finding.verdict is not Verdict.OK)


def test_choosing_checks() -> None:
    every = [SOUND, FAULT, replace(DOUBT, with_run=True)]

    def names(**given: Any) -> list[str]:
        chosen = choose(every, given.get("only", ()), given.get("skip", ()), given.get("run", True))
        return [one.name for one in chosen]

    assert names() == ["sound", "fault", "doubt"]
    assert names(run=False) == ["sound", "fault"]
    assert names(only=["fault"]) == ["fault"]
    assert names(skip=["fault"]) == ["sound", "doubt"]
    with pytest.raises(BridgeError, match="did you mean 'sound'"):
        names(only=["sund"])
    with pytest.raises(BridgeError, match="needs the arguments"):
        names(only=["doubt"], run=False)


@pytest.mark.parametrize(
    ("text", "words", "processes", "machines", "script"),
    [
        ("--seq-length 8", "--seq-length 8", 1, 1, None),
        ("--nproc-per-node 4 --seq-length 8", "--seq-length 8", 4, 1, None),
        ("torchrun --nproc_per_node=8 --nnodes 2 train.py --bf16", "--bf16", 8, 2, "train.py"),
        (
            "torchrun --nproc-per-node gpu -m megatron.train --bf16",
            "--bf16",
            3,
            1,
            "megatron.train",
        ),
        ("python3 -u -X dev pretrain_gpt.py --bf16", "--bf16", 1, 1, "pretrain_gpt.py"),
        (
            "CUDA_DEVICE_MAX_CONNECTIONS=1 python -m torch.distributed.launch --nproc_per_node 2 "
            "--master_port 6000 a/b.py --lr 1",
            "--lr 1",
            2,
            1,
            "a/b.py",
        ),
        ("pretrain_gpt.py --bf16", "--bf16", 1, 1, "pretrain_gpt.py"),
        ("accel-bridge pretrain --nproc-per-node 2 -- --bf16", "--bf16", 2, 1, None),
        ("accel-bridge pretrain --model hybrid -- --bf16", "--bf16", 1, 1, None),
        ("x.py --model hybrid --bf16", "--model hybrid --bf16", 1, 1, "x.py"),
        ("accel-bridge run -- torchrun --standalone x.py --bf16", "--bf16", 1, 1, "x.py"),
        ("srun -N 2 numactl --all python x.py --bf16", "--bf16", 1, 1, "x.py"),
    ],
)
def test_command_lines(
    text: str, words: str, processes: int, machines: int, script: str | None
) -> None:
    training = Training()
    take_apart(text.split(), training)
    assert training.argv == words.split()
    run = training.run({}, devices=3)
    assert (run.processes, run.machines, run.script) == (processes, machines, script)
    if text.startswith("CUDA"):
        assert training.environ == {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
        assert run.port == 6000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bash train.sh", "shell script is not run"),
        ("./train.sh --bf16", "shell script is not run"),
        ("make train", "no program that is known"),
        ("", "no arguments of a training"),
        ("torchrun --nproc-per-node many x.py --bf16", "is not a number"),
    ],
)
def test_command_lines_that_cannot_be_read(text: str, message: str) -> None:
    with pytest.raises(BridgeError, match=message):
        take_apart(text.split(), Training())


def test_ranks_that_a_launcher_has_started() -> None:
    training = Training(argv=["--bf16"])
    environ = {"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8", "MASTER_PORT": "6000"}
    assert training.run(environ, None) == Run(8, 2, None, 6000)


def doctor(python: Python, *words: str, status: int = 0, **environ: str) -> dict[str, Any]:
    done = python("-m", "accel_bridge", "doctor", "--json", *words, **environ)
    assert done.returncode == status, done.stdout + done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


QUICK = "hardware,variables,launcher,shared-memory,ports"


@pytest.mark.slow
def test_this_machine_is_sound(python: Python) -> None:
    """What needs no import of torch: the machine of a test may be slow."""
    done = python("-m", "accel_bridge", "doctor", "--skip", "imports", "--skip=megatron-import")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].endswith(" passed"), done.stdout


def test_json_and_faults(python: Python) -> None:
    found = doctor(python, "--only", QUICK, status=1, RANK="3", ACCEL_BRIDGE_LOUD="1")
    assert (found["verdict"], found["would_fail"], found["warnings"]) == ("would fail", 1, 1)
    names = [one["name"] for one in found["checks"]]
    assert names == QUICK.split(",")
    [launcher] = [one for one in found["checks"] if one["name"] == "launcher"]
    assert launcher["findings"][0]["next"].startswith("unset RANK")


def test_backend_that_cannot_be_used(python: Python) -> None:
    found = doctor(python, "--only", "hardware", status=1, ACCEL_BRIDGE_BACKEND="ascend")
    [hardware] = found["checks"]
    assert "cannot be used" in hardware["findings"][0]["what"]


PLUGIN = """
import os, signal, time
from accel_bridge.plugin import Check, ParsedArguments, fails, hookimpl

@hookimpl
def accel_bridge_checks():
    def beads(machine):
        yield fails("a bead is missing", "99 beads", next="count them")

    def hangs(machine):
        time.sleep(600)

    def dies(machine):
        os.kill(os.getpid(), signal.SIGSEGV)

    looks = "what is injected"
    return [
        Check("beads", "Abacus", looks, beads),
        Check("hangs", "Abacus", looks, hangs, seconds=1),
        Check("dies", "Abacus", looks, dies),
        Check("variables", "Abacus", looks, beads),
        "no check",
    ]

@hookimpl
def accel_bridge_parsed_arguments(argv, run):
    return [ParsedArguments("abacus", {"beads": len(argv), **dict.fromkeys("abcdefgh")})]
"""


def test_checks_of_a_plugin(python: Python, site: Site) -> None:
    site.install("abacus-bridge", {"abacus_bridge": PLUGIN}, {"abacus": "abacus_bridge"})
    here = {"PYTHONPATH": str(site.directory)}
    found = doctor(python, "--only", "beads,hangs,dies", status=1, **here)
    told = {one["name"]: one for one in found["checks"]}
    assert told["beads"]["findings"][0]["what"] == "a bead is missing"
    assert told["hangs"]["broken"] == "it did not end in 1 s"
    assert told["dies"]["broken"] == "killed by SIGSEGV"
    done = python("-m", "accel_bridge", "doctor", "--list", **here)
    assert "beads" in done.stdout
    assert "the check name 'variables' is taken by" in done.stderr
    assert "'no check' is not an accel_bridge.plugin.Check" in done.stderr


HANGS = "import time\ntime.sleep(600)\n"


@pytest.mark.slow
def test_torch_that_hangs_or_aborts(python: Python, site: Site) -> None:
    (site.directory / "torch").mkdir()
    site.install("torch", {"torch/__init__": HANGS})
    words = ("doctor", "--json", "--only", "imports,shared-memory", "--wait", "2")
    done = python("-m", "accel_bridge", *words, PYTHONPATH=str(site.directory))
    imports, memory = json.loads(done.stdout)["checks"]
    [told] = imports["findings"]
    assert told["what"] in ("`import torch` hangs", "`import torch` is slow"), told
    assert "torch/__init__.py" in told["evidence"][0]
    assert memory["verdict"] == "ok"
    (site.directory / "torch/__init__.py").write_text("import os\nos.abort()\n")
    found = doctor(python, *words[2:4], status=1, PYTHONPATH=str(site.directory))
    told = found["checks"][0]["findings"][0]
    assert told["evidence"][0].startswith("killed by SIGABRT")


def test_arguments_that_megatron_reads(forked: Python, tmp_path: Path) -> None:
    """The installed Megatron reads them all; a flag of nobody gets a suggestion."""
    given = (
        "--mock-data --tokenizer-type NullTokenizer --vocab-size 255 --num-layers 2 "
        "--hidden-size 64 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64 "
        f"--micro-batch-size 2 --train-iters 10 --lr 1e-3 --save {tmp_path} --save-interval 10"
    ).split()
    only = ("--only", "arguments,layout,memory,outputs,inputs,data,token-ids,tokenizer,ranks")
    found = doctor(forked, *only, "--", *given, "--hidden-sise", "64", status=1)
    assert found["would_fail"] == 1, found
    told = {one["name"]: one["findings"] for one in found["checks"]}
    [unknown] = told["arguments"]
    assert "--hidden-sise; did you mean '--hidden-size'" in unknown["what"]
    [memory] = told["memory"]
    assert "Megatron's own estimate" in memory["evidence"][0]


def test_what_megatron_refuses_is_told_in_three_parts() -> None:
    """Assertions, and what argparse prints before it ends."""

    def refusal(error: BaseException) -> Any:
        answer = io.StringIO()

        def refuse() -> None:
            with Reader(answer, [], 1).explaining("validate"):
                print("pretrain_gpt.py: error: argument --lr: invalid", file=sys.stderr)
                raise error

        with pytest.raises(Stop):
            refuse()
        [line] = answer.getvalue().splitlines()
        return json.loads(line)["finding"]

    found = refusal(AssertionError("world size (6) is not divisible by total_model_size 4"))
    assert found["what"] == "the number of ranks does not fit the layout"
    assert found["next"].startswith("start a multiple (--nproc-per-node")
    found = refusal(SystemExit(2))
    assert found["what"].endswith(": argument --lr: invalid")
    assert found["evidence"] == ["pretrain_gpt.py: error: argument --lr: invalid"]


def test_arguments_without_a_megatron(python: Python) -> None:
    """Nothing reads them but this project, and says so."""
    hidden = "import sys; sys.modules['megatron'] = None; "
    run = "from accel_bridge.apps.cli.main import main; sys.exit(main(sys.argv[1:]))"
    words = ("doctor", "--json", "--only", "arguments,layout,megatron", "--nproc-per-node", "2")
    done = python("-c", hidden + run, *words, "--", "--tensor-model-parallel-size", "3")
    assert done.returncode == 1, done.stdout + done.stderr
    found = {one["name"]: one for one in json.loads(done.stdout)["checks"]}
    assert "word by word" in found["arguments"]["findings"][0]["what"]
    assert "groups of 3" in found["layout"]["findings"][0]["what"]
    assert found["megatron"]["findings"][0]["what"] == "Megatron is not installed"


def test_the_check_of_the_page(tmp_path: Path) -> None:
    """The Python of docs/doctor.md."""
    page = (Path(__file__).parents[2] / "docs/doctor.md").read_text(encoding="utf-8")
    check, look = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(check, names)  # the page is this repository's own
    exec(look, names)
    [made] = names["accel_bridge_checks"]()
    file = tmp_path / "proc/driver/abacus/beads"
    file.parent.mkdir(parents=True)
    file.write_text("100\n")
    assert [one.verdict for one in made.run(Machine(root=tmp_path))] == [Verdict.OK]
