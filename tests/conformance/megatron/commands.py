"""Runs one command for each model and each tool of Megatron, as a user types it, but small.

    python tests/conformance/megatron/commands.py CHECKOUT [--only REGEX] [--backend cpu]
        [--limit 300] [--warm] [--json FILE] [--logs DIRECTORY]

The commands are in commands.toml, which says what each row means. Every one is started with
`accel-bridge run --` in the checkout, one after the other, so that a tool may read what an earlier
command has written. A training has passed when its losses are those of one (recipe_verdicts.py);
another command when it ends well and says, or answers, what the row expects.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import megatron_programs
import recipe_data
import recipe_inference
import recipe_rules
from megatron_programs import Row, Trainer
from recipe_verdicts import Phase, Verdict, judge, why

LIST: Final = Path(__file__).with_name("commands.toml")


@dataclass(frozen=True)
class Command:
    """One row.

    :param kind: ``models``, ``tools`` or another kind of tools/compatibility_results.py.
    :param shows: an expression that the output of a command that trains nothing must have.
    :param asks: [address, JSON body] of a server's request; it is stopped after its answer, which
        must have ``shows``.
    :param script: a shell script of the checkout, which ``line`` names as ``$SCRIPT``; its sizes
        are made small by the rules of recipes.
    :param directory: where it starts; the checkout where it is left out.
    :param files: name below ``$WORK`` -> text, written before; ``NAME/`` is a directory.
    :param resumes: the iteration that it goes on from.
    :param below: a loss that the first one must be under, as it starts from a trained model.
    :param upstream: (expression, reason) of a failure that is Megatron's own.
    :param writes: a file below ``$WORK`` that must be there afterwards.
    """

    kind: str
    what: str
    line: str
    shows: str = ""
    asks: Sequence[str] = ()
    script: str = ""
    edits: Sequence[tuple[str, str]] = ()
    upstream: Sequence[str] = ()
    writes: str = ""
    directory: str = "$CHECKOUT"
    resumes: int = 0
    below: float = 0.0
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def trains(self) -> bool:
        """Whether its losses are judged."""
        return not (self.shows or self.writes)


def read(path: Path = LIST) -> tuple[dict[str, str], list[Command]]:
    """(name -> words that it stands for, the rows)."""
    import tomllib

    document = tomllib.loads(path.read_text(encoding="utf-8"))
    rows = [{**row, "line": " ".join(row["line"].split())} for row in document["command"]]
    return document["words"], [Command(**row) for row in rows]


def small_script(text: str, edits: Sequence[tuple[str, str]]) -> str:
    """A shell script with smaller sizes and shorter runs; everything else as it was written."""

    def smaller(found: re.Match[str]) -> str:
        flag, value = found[1], int(found[2])
        return f"{flag} {min(value, recipe_rules.WIDTHS[flag])}"

    flags = "|".join(map(re.escape, recipe_rules.WIDTHS))
    text = re.sub(rf"({flags})[ =](\d+)", smaller, text)
    for old, new in edits:
        text, count = re.subn(old, new, text)
        if not count:
            raise ValueError(f"the script has no {old!r}")
    return text


@dataclass(frozen=True)
class Bench:
    """Where commands run."""

    trainer: Trainer
    work: Path
    logs: Path
    words: Mapping[str, str]

    def expand(self, text: str, places: Mapping[str, str]) -> str:
        """``text`` with the words of the list, then the places of this run."""
        known = {**self.words, **places}
        while (new := re.sub(r"\$([A-Z_]+)", lambda m: known.get(m[1], m[0]), text)) != text:
            text = new
        return text

    def path(self) -> str:
        """The programs of this environment, and a torchrun whose ranks have the trainer's Python.

        Some environments see torch but not its programs.
        """
        directory = self.work / "bin"
        directory.mkdir(exist_ok=True)
        program = directory / "torchrun"
        program.write_text(f'#!/bin/sh\nexec {self.trainer.python} -m torch.distributed.run "$@"\n')
        program.chmod(0o755)
        own = str(Path(sys.executable).parent)
        return os.pathsep.join((str(directory), own, os.environ["PATH"]))

    def run(self, command: Command) -> Verdict:
        """One row."""
        checkout = self.trainer.checkout
        places = {
            "CHECKOUT": str(checkout),
            "WORK": str(self.work),
            "DATA": str(self.work / "data"),
        }
        for name, content in command.files.items():
            if name.endswith("/"):
                (self.work / name).mkdir(exist_ok=True)
                continue
            (self.work / name).write_text(self.expand(content, places), encoding="utf-8")
        if command.script:
            text = (checkout / command.script).read_text(encoding="utf-8")
            script = self.work / Path(command.script).name
            edits = [(old, self.expand(new, places)) for old, new in command.edits]
            script.write_text(small_script(text, edits), encoding="utf-8")
            places["SCRIPT"] = str(script)
        line = shlex.split(self.expand(command.line, places))
        directory = Path(self.expand(command.directory, places))
        status, output, answer = self._start(line, command, directory)
        flags = dict(zip(line, [*line[1:], ""], strict=True))
        iterations = recipe_rules.number(flags, "--train-iters", 0) - command.resumes
        phase = Phase(status, output, iterations)
        verdict = (
            _judge_training(command, phase)
            if command.trains
            else _judge_tool(command, phase, answer, self.work)
        )
        if verdict.outcome in ("failed", "refused") and command.upstream:
            pattern, reason = command.upstream
            if re.search(pattern, output):
                return Verdict("upstream", reason)
        return verdict

    def _start(
        self, line: Sequence[str], command: Command, directory: Path
    ) -> tuple[int, str, str]:
        """(status, output, what a server answered)."""
        answers = [""]

        def ask(process: subprocess.Popen[bytes]) -> int:
            answers.append(_ask(process, *command.asks, limit=self.trainer.limit))
            return 0 if answers[-1] else process.poll() or 1

        words = [sys.executable, "-m", "accel_bridge", "run", "--", *line]
        log = self.logs / (re.sub(r"\W+", "-", command.what) + ".log")
        wait = ask if command.asks else None
        environ = {"PATH": self.path()}
        status, output = self.trainer.run(words, directory, log, environ, wait=wait)
        return status, output, answers[-1]


def _ask(process: subprocess.Popen[bytes], address: str, body: str, *, limit: float) -> str:
    """A server's answer, as soon as it gives one; empty when it does not."""
    method = "PUT" if address.endswith("/api") else "POST"
    head = {"Content-Type": "application/json"}
    request = urllib.request.Request(address, body.encode(), head, method=method)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    end = time.monotonic() + limit
    while time.monotonic() < end and process.poll() is None:
        try:
            with opener.open(request, timeout=60) as reply:
                return str(reply.read().decode())
        except urllib.error.HTTPError as error:
            return f"{error.code}: {error.read().decode(errors='replace')[:500]}"
        except OSError:
            time.sleep(1)
    return ""


def _judge_training(command: Command, phase: Phase) -> Verdict:
    """The verdict over a command that trains."""
    verdict = judge([phase], {}, resumes=False)
    first = min(phase.losses, default=0)
    if verdict.outcome != "passed":
        return verdict
    if command.resumes and first != command.resumes + 1:
        return Verdict("failed", f"it went on at iteration {first}")
    if command.below and first and not phase.losses[first] < command.below:
        return Verdict("failed", f"the first loss is {phase.losses[first]}")
    return verdict


def _judge_tool(command: Command, phase: Phase, answer: str, work: Path) -> Verdict:
    """The verdict over a command that trains nothing."""
    if phase.status:
        return why(phase)
    # The first line of a log is the command.
    text = answer if command.asks else phase.output.partition("\n")[2]
    if command.shows and not re.search(command.shows, text):
        return Verdict("failed", f"it does not say {command.shows}")
    if command.writes and not any(work.glob(command.writes)):
        return Verdict("failed", f"it writes no {command.writes}")
    return Verdict("passed")


def main() -> int:
    """One line for each command; status 1 when one failed."""
    parser = megatron_programs.options(__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--only", default="", help="a regular expression of KIND/NAME")
    asked = parser.parse_args()
    known, commands = read()
    with tempfile.TemporaryDirectory(prefix="commands-") as name:
        work = Path(name)
        (work / "data").mkdir()
        checkout: Path = asked.checkout.resolve()
        recipe_data.make(checkout, work / "data")
        recipe_inference.make_tokenizer(work)
        text = [{"text": f"Document {n} is about the sea, and ends here."} for n in range(40)]
        (work / "text.jsonl").write_text("\n".join(map(json.dumps, text)) + "\n", encoding="utf-8")
        python = megatron_programs.python_of(asked)
        trainer = Trainer(checkout, asked.backend, python=python, limit=asked.limit)
        bench = Bench(trainer, work, megatron_programs.logs_of(asked, work), known)
        chosen = [one for one in commands if re.search(asked.only, f"{one.kind}/{one.what}")]
        return megatron_programs.finish(asked, _rows(bench, chosen))


def _rows(bench: Bench, commands: Sequence[Command]) -> Iterator[tuple[str, Row]]:
    version = megatron_programs.version_of(bench.trainer.checkout)
    for one in commands:
        began = time.monotonic()
        outcome, reason = bench.run(one)
        seconds = round(time.monotonic() - began, 1)
        yield one.kind, Row(version, one.what, one.line, outcome, 1, reason, None, seconds)


if __name__ == "__main__":
    # Whoever ends this program ends what it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    raise SystemExit(main())
