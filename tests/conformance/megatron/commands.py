"""Runs one command for each model and each tool of Megatron, as a user types it, but small.

    python tests/conformance/megatron/commands.py CHECKOUT [--only REGEX] [--backend cpu]
        [--limit 300] [--warm] [--json FILE] [--results DIRECTORY] [--logs DIRECTORY]

The commands are in commands.toml, which says what each row means. Every one is started with
`accel-bridge run --` in the checkout, one after the other, so that a tool may read what an earlier
command has written. A training has passed when its losses are those of one (recipe_verdicts.py);
another command when it ends well and says, or answers, what the row expects.
"""

from __future__ import annotations

import dataclasses
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
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import megatron_programs
import recipe_data
import recipe_inference
import recipe_rules
from recipe_ranks import Nest
from recipe_verdicts import Phase, Verdict, judge, why

HERE: Final = Path(__file__).parent
LIST: Final = HERE / "commands.toml"
_RANKS: Final = ["torchrun", "--standalone", "--nproc-per-node"]


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
    asks: tuple[str, str] | tuple[()] = ()
    script: str = ""
    edits: tuple[tuple[str, str], ...] = ()
    upstream: tuple[str, str] | tuple[()] = ()
    writes: str = ""
    directory: str = "$CHECKOUT"
    resumes: int = 0
    below: float = 0.0
    files: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def trains(self) -> bool:
        """Whether its losses are judged."""
        return not (self.shows or self.writes)


def read(path: Path = LIST) -> tuple[dict[str, str], list[Command]]:
    """(name -> words that it stands for, the rows)."""
    import tomllib

    document = tomllib.loads(path.read_text(encoding="utf-8"))
    rows = []
    for entry in document["command"]:
        lists: dict[str, tuple[object, ...]] = {"asks": tuple(entry.get("asks", ()))}
        lists["upstream"] = tuple(entry.get("upstream", ()))
        lists["edits"] = tuple((old, new) for old, new in entry.get("edits", ()))
        rows.append(Command(**{**entry, **lists, "line": " ".join(entry["line"].split())}))
    return document["words"], rows


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

    checkout: Path
    work: Path
    logs: Path
    backend: str
    limit: float
    words: Mapping[str, str]
    nest: Nest | None = None

    def expand(self, text: str, places: Mapping[str, str]) -> str:
        """``text`` with the words of the list, then the places of this run."""
        known = {**self.words, **places}
        while (new := re.sub(r"\$([A-Z_]+)", lambda m: known.get(m[1], m[0]), text)) != text:
            text = new
        return text

    def environment(self) -> dict[str, str]:
        """What every run shares."""
        directories = [str(Path(sys.executable).parent), os.environ["PATH"], str(self._torchrun())]
        common = megatron_programs.environment(self.checkout, self.backend)
        return common | {"PATH": os.pathsep.join(directories)}

    def _torchrun(self) -> Path:
        """A directory with torchrun, for an environment that sees torch but not its programs."""
        directory = self.work / "bin"
        directory.mkdir(exist_ok=True)
        program = directory / "torchrun"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m torch.distributed.run "$@"\n')
        program.chmod(0o755)
        return directory

    def run(self, command: Command) -> Verdict:
        """One row."""
        began = time.monotonic()
        places = {
            "CHECKOUT": str(self.checkout),
            "WORK": str(self.work),
            "DATA": str(self.work / "data"),
        }
        for name, content in command.files.items():
            if name.endswith("/"):
                (self.work / name).mkdir(exist_ok=True)
                continue
            (self.work / name).write_text(self.expand(content, places), encoding="utf-8")
        if command.script:
            text = (self.checkout / command.script).read_text(encoding="utf-8")
            script = self.work / Path(command.script).name
            edits = [(old, self.expand(new, places)) for old, new in command.edits]
            script.write_text(small_script(text, edits), encoding="utf-8")
            places["SCRIPT"] = str(script)
        line = shlex.split(self.expand(command.line, places))
        log = self.logs / (re.sub(r"\W+", "-", command.what) + ".log")
        directory = Path(self.expand(command.directory, places))
        status, answer = self._start(line, command, directory, log)
        output = log.read_text(encoding="utf-8", errors="replace")
        flags = dict(zip(line, [*line[1:], ""], strict=True))
        iterations = recipe_rules.number(flags, "--train-iters", 0) - command.resumes
        phase = Phase(command.what, 1, status, output, iterations)
        if command.trains:
            verdict = judge([phase], {}, resumes=False)
            first = min(phase.losses, default=0)
            wrong = ""
            if command.resumes and first != command.resumes + 1:
                wrong = f"it went on at iteration {first}"
            if command.below and first and not phase.losses[first] < command.below:
                wrong = f"the first loss is {phase.losses[first]}"
            if verdict.outcome == "passed" and wrong:
                verdict = dataclasses.replace(verdict, outcome="failed", reason=wrong)
        else:
            verdict = _judge_tool(command, phase, answer, self.work)
        if verdict.outcome in ("failed", "refused") and command.upstream:
            pattern, reason = command.upstream
            if re.search(pattern, output):
                verdict = dataclasses.replace(verdict, outcome="upstream", reason=reason)
        return dataclasses.replace(verdict, seconds=round(time.monotonic() - began, 1))

    def _start(
        self, line: Sequence[str], command: Command, directory: Path, log: Path
    ) -> tuple[int, str]:
        """(status, what a server answered)."""
        words = [sys.executable, "-m", "accel_bridge", "run", "--", *line]
        if self.nest is not None and line[:3] == _RANKS:
            log.write_text(shlex.join(line) + "\n", encoding="utf-8")
            script = [str(self.checkout / line[4]), *line[5:]]
            return self.nest.run(script, int(line[3]), {}, log, self.limit), ""
        answers = [""]

        def ask(process: subprocess.Popen[bytes]) -> int:
            answers.append(_ask(process, *command.asks, limit=self.limit))
            return 0 if answers[-1] else process.poll() or 1

        with log.open("w", encoding="utf-8") as stream:
            stream.write(shlex.join(line) + "\n")
            stream.flush()
            environ, wait = self.environment(), ask if command.asks else None
            status = megatron_programs.run(words, environ, directory, stream, self.limit, wait)
        return status, answers[-1]


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


def _judge_tool(command: Command, phase: Phase, answer: str, work: Path) -> Verdict:
    """The verdict over a command that trains nothing."""
    if phase.status:
        return Verdict(why(phase)[0], why(phase)[1], 1, {}, 0.0, why(phase)[2])
    text = answer if command.asks else phase.output
    if command.shows and not re.search(command.shows, text):
        return Verdict("failed", f"it does not say {command.shows}", 1, {}, 0.0, text[-2000:])
    if command.writes and not any(work.glob(command.writes)):
        return Verdict("failed", f"it writes no {command.writes}", 1, {}, 0.0, text[-2000:])
    return Verdict("passed", "", 1, {}, 0.0)


def main(words: Sequence[str] | None = None) -> int:
    """One line for each command; status 1 when one failed."""
    options = megatron_programs.options(__doc__, "KIND/NAME").parse_args(words)
    known, commands = read()
    done: list[tuple[Command, Verdict]] = []
    with tempfile.TemporaryDirectory(prefix="commands-") as name:
        work = Path(name)
        logs: Path = (options.logs or work / "logs").resolve()
        logs.mkdir(parents=True, exist_ok=True)
        (work / "data").mkdir()
        checkout: Path = options.checkout
        recipe_data.make(checkout, work / "data")
        recipe_inference.make_tokenizer(work)
        text = [{"text": f"Document {n} is about the sea, and ends here."} for n in range(40)]
        (work / "text.jsonl").write_text("\n".join(map(json.dumps, text)) + "\n", encoding="utf-8")
        bench = Bench(checkout, work, logs, options.backend, options.limit, known)
        if options.warm:
            nest = Nest(checkout, bench.environment())
            bench = dataclasses.replace(bench, nest=nest)
        for command in commands:
            if re.search(options.only, f"{command.kind}/{command.what}"):
                verdict = bench.run(command)
                done.append((command, verdict))
                told = f"{verdict.outcome} ({verdict.seconds} s) {verdict.reason}"
                print(f"{command.what}: {told}", flush=True)
                megatron_programs.write_verdicts(
                    options.json,
                    [
                        ({"kind": one.kind, "what": one.what, "line": one.line}, verdict)
                        for one, verdict in done
                    ],
                )
        if bench.nest is not None:
            bench.nest.close()
    for kind in dict.fromkeys(command.kind for command, _ in done) if options.results else ():
        rows = [(one.what, one.line, verdict) for one, verdict in done if one.kind == kind]
        path = (
            options.results
            / f"{kind}-{megatron_programs.version_of(checkout)}-{options.backend}.json"
        )
        megatron_programs.write_rows(kind, options, path, rows)
    counts = Counter(verdict.outcome for _, verdict in done)
    print(dict(counts))
    return int(counts["failed"] > 0)


if __name__ == "__main__":
    # Whoever ends this program ends what it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main())
