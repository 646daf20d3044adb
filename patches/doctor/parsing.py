"""A training's arguments, read by the installed Megatron in a child process, or word by word."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from accel_bridge.patches._factory import DISTRIBUTION
from accel_bridge.patches.doctor.installation import broken
from accel_bridge.plugins.checks import Finding, ParsedArguments, Run, fails, warning
from accel_bridge.process.environment import did_you_mean

_CHILD: Final = "accel_bridge.patches.doctor.child"
#: What read them, where no Megatron could.
WORDS: Final = "words"
#: Scripts whose flags are all Megatron's own.
_PLAIN_SCRIPTS: Final = (None, "pretrain_gpt.py", "pretrain_mamba.py", "pretrain_hybrid.py")


def read(argv: list[str], run: Run, seconds: float) -> list[ParsedArguments]:
    """The reading; by words alone where no Megatron can read them."""
    from accel_bridge.patches._installed import megatron_version

    version = megatron_version()
    if version is None:
        return [_by_words(argv, "there is no Megatron to read them")]
    lines, problem = _ask(argv, run.ranks, seconds)
    found = _merged(lines)
    if not found.get("arguments"):
        findings = [*_refused(lines), *broken(str(found.get("broken") or ""))]
        reading = _by_words(argv, found.get("broken") or problem or "Megatron gave no answer")
        # What Megatron says is wrong counts more than that it could not say the rest.
        return [replace(reading, findings=(*findings,)) if findings else reading]
    findings = [
        *_unknown(found.get("unknown", ()), found.get("flags", ()), run),
        *_refused(lines),
    ]
    if problem is not None:
        findings.append(
            warning(
                f"Megatron did not end to read the arguments: it stood at step "
                f"{found.get('stage')!r}",
                problem,
                next="look at what that step waits for, often a hub of tokenizers (HF_HUB_OFFLINE=1"
                "); `accel-bridge doctor --wait 600` waits longer",
            )
        )
    arguments = {**found["arguments"], "parameters": found.get("parameters")}
    return [
        ParsedArguments(
            f"{DISTRIBUTION} {version}", arguments, tuple(findings), found.get("memory")
        )
    ]


def _ask(argv: list[str], ranks: int, seconds: float) -> tuple[list[dict[str, Any]], str | None]:
    """What the child wrote, and why it did not end well."""
    with tempfile.TemporaryDirectory(prefix="accel_bridge_doctor_") as directory:
        answer = Path(directory) / "answer"
        environ = {**os.environ, "ACCEL_BRIDGE_LOG": "quiet", "ACCEL_BRIDGE_STRICT": "0"}
        problem = None
        try:
            done = subprocess.run(
                [sys.executable, "-m", _CHILD, str(answer)],
                input=json.dumps({"argv": argv, "ranks": ranks}),
                capture_output=True,
                text=True,
                errors="replace",
                timeout=seconds,
                env=environ,
                check=False,
            )
        except subprocess.TimeoutExpired:
            problem = f"no answer in {seconds:g} s"
        else:
            if done.returncode:
                last = (done.stderr.strip().splitlines() or ["no message"])[-1]
                problem = f"it ended with status {done.returncode}: {last}"
        try:
            text = answer.read_text(encoding="utf-8")
        except OSError:
            text = ""
    return [json.loads(line) for line in text.splitlines()], problem


def _merged(lines: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Later lines win."""
    return {key: value for line in lines for key, value in line.items()}


def _refused(lines: Iterable[dict[str, Any]]) -> Iterator[Finding]:
    for line in lines:
        if finding := line.get("finding"):
            yield fails(finding["what"], *finding["evidence"], next=finding["next"])


def _unknown(argv: Iterable[str], flags: Iterable[str], run: Run) -> Iterator[Finding]:
    """Words that Megatron's parser does not know; a script may have flags of its own."""
    known = list(flags)
    for word in argv:
        flag = word.partition("=")[0]
        hint = did_you_mean(flag, known)
        own = Path(run.script).name if run.script else None
        says = fails if hint or own in _PLAIN_SCRIPTS else warning
        yield says(
            f"the installed Megatron has no argument {flag}{hint}",
            f"{len(known)} flags were looked through",
            next=f"correct or remove {flag}"
            + ("" if own in _PLAIN_SCRIPTS else f", unless it is {own}'s own"),
        )


def _by_words(argv: list[str], why: str) -> ParsedArguments:
    """``--name value ...`` taken as they stand; what is not given is not known."""
    doubt = warning(
        "the arguments were read word by word: Megatron's own checks and defaults are missing",
        why,
        next="see what the other checks say of Megatron and torch",
    )
    return ParsedArguments(WORDS, by_words(argv), (doubt,))


def by_words(argv: Iterable[str]) -> dict[str, Any]:
    """Arguments as words: a flag alone is True, several values are a list."""
    found: dict[str, list[str]] = {}
    name = None
    for word in argv:
        if word.startswith("--") and len(word) > 2:
            flag, equals, value = word[2:].partition("=")
            name = flag.replace("-", "_")
            found[name] = [value] if equals else []
        elif name is not None:
            found[name].append(word)
    return {
        name: True if not values else _value(values[0]) if len(values) == 1 else values
        for name, values in found.items()
    }


def _value(word: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word
