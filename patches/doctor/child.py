"""Reads a training's arguments with the installed Megatron; run as a script, in a child process.

``python -m accel_bridge.patches.doctor.child FILE`` takes ``{"argv": [...], "ranks": n}`` on its
standard input, and writes one JSON object a line to FILE as it goes, so that a step that hangs
costs only what comes after it:

- ``{"stage": name}`` when a step begins;
- ``{"arguments": {...}}``, the arguments as far as they are plain values, again when they change;
- ``{"unknown": [...], "flags": [...]}``, words that no argument took, and all flags there are;
- ``{"finding": {"what", "evidence", "next"}}`` for what Megatron refuses;
- ``{"memory": bytes, "parameters": count}``, by Megatron's own estimate.
"""

from __future__ import annotations

import argparse
import contextlib
import enum
import importlib
import io
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, Final, TextIO

#: What a script is called in Megatron's messages.
_SCRIPT: Final = "pretrain_gpt.py"
_DEFAULTS: Final = {"tokenizer_type": "GPT2BPETokenizer"}
_MB: Final = 2**20


class Stop(Exception):
    """A step failed; what it said is written."""


class Reader:
    """The steps, and where they are written.

    :param answer: the file.
    :param ranks: of the training.
    """

    def __init__(self, answer: TextIO, argv: list[str], ranks: int) -> None:
        self._answer = answer
        self._words = argv
        self._ranks = ranks
        self.args: Any = None

    def run(self) -> None:
        """All steps, up to the first that fails."""
        self._set_ranks()
        steps: tuple[tuple[str, Callable[[], None]], ...] = (
            ("import", self._import),
            ("parse", self._parse),
            ("validate", self._validate),
            ("configure", self._configure),
            ("tokenizer", self._tokenizer),
            ("memory", self._memory),
            ("checkpoint", self._checkpoint),
        )
        for name, step in steps:
            self._write(stage=name)
            with self.explaining(name):
                step()

    def _set_ranks(self) -> None:
        os.environ.update(
            RANK="0",
            WORLD_SIZE=str(self._ranks),
            # More ranks than devices are another check's to find.
            LOCAL_RANK="0",
            LOCAL_WORLD_SIZE="1",
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT="0",
        )

    @contextlib.contextmanager
    def explaining(self, stage: str) -> Iterator[None]:
        """Write down what goes wrong, in three parts, and stop."""
        with tempfile.TemporaryFile("w+", errors="replace") as said:
            try:
                with contextlib.redirect_stderr(said):  # a file: libraries ask for its number
                    yield
            except SystemExit as end:
                said.seek(0)
                self._end(end, said.read().splitlines())
                raise Stop from end
            except Exception as error:
                if stage == "import":
                    line = f"{type(error).__name__}: {error}"
                    self._write(broken=line.splitlines()[0])
                else:
                    self._explain(error)
                raise Stop from error

    def _end(self, end: SystemExit, printed: list[str]) -> None:
        from accel_bridge.process.endings import explanation

        lines = [line for line in printed if "error:" in line] or printed
        message = (lines or [f"status {end.code}"])[-1]
        explained = explanation(end)
        if explained is not None:
            self._finding(explained.what, explained.evidence, explained.next)
        else:
            why = message.partition("error: ")[2] or message
            self._finding(
                f"Megatron does not accept these arguments: {why}", (message,), "fix what it says"
            )

    def _explain(self, error: Exception) -> None:
        from accel_bridge.patches.advice import advise
        from accel_bridge.process.endings import explanation

        advise(error, self.args)
        explained = explanation(error)
        if explained is not None:
            self._finding(explained.what, explained.evidence, explained.next)
        else:
            line = f"{type(error).__name__}: {error}".splitlines()[0]
            self._finding(f"Megatron does not accept these arguments: {line}", (line,), "fix it")

    def _import(self) -> None:
        import accel_bridge

        accel_bridge.activate()
        importlib.import_module("megatron.training.arguments")

    def _parse(self) -> None:
        arguments = importlib.import_module("megatron.training.arguments")
        sys.argv = [_SCRIPT, *self._words]
        original = argparse.ArgumentParser.parse_known_args
        unknown: list[str] = []
        flags: list[str] = []

        def parse(parser: argparse.ArgumentParser, *given: Any, **others: Any) -> Any:
            namespace, rest = original(parser, *given, **others)
            unknown[:] = rest
            flags[:] = [flag for action in parser._actions for flag in action.option_strings]
            return namespace, rest

        argparse.ArgumentParser.parse_known_args = parse  # type: ignore[method-assign, assignment]
        try:
            self.args = arguments.parse_args(ignore_unknown_args=True)
        finally:
            argparse.ArgumentParser.parse_known_args = original  # type: ignore[method-assign]
        self._write(unknown=[word for word in unknown if word.startswith("-")], flags=flags)
        self._plain()

    def _validate(self) -> None:
        arguments = importlib.import_module("megatron.training.arguments")
        arguments.validate_args(self.args, dict(_DEFAULTS))
        self._plain()

    def _configure(self) -> None:
        arguments = importlib.import_module("megatron.training.arguments")
        build = getattr(arguments, "core_transformer_config_from_args", None)
        if build is not None:
            build(self.args)

    def _tokenizer(self) -> None:
        if getattr(self.args, "padded_vocab_size", None):
            return
        for place in (
            "megatron.core.tokenizers.utils.build_tokenizer",
            "megatron.training.tokenizer",
        ):
            try:
                build = importlib.import_module(place).build_tokenizer
            except (ImportError, AttributeError):
                continue
            build(self.args)
            break
        self._plain()

    def _memory(self) -> None:
        usage = importlib.import_module("megatron.training.theoretical_memory_usage")
        args, said = self.args, io.StringIO()
        share = (args.micro_batch_size or 1) * (getattr(args, "data_parallel_size", 1) or 1)
        batches = max(1, (args.global_batch_size or share) // share)
        # An estimate that Megatron cannot make says nothing against the training.
        with contextlib.suppress(Exception), contextlib.redirect_stdout(said):
            usage.report_theoretical_memory(args, num_microbatches=batches, verbose=True)
        total = re.search(r"total=([\d.]+) MB", said.getvalue())
        count = re.search(r"Total number of parameters in billions: *([\d.]+)", said.getvalue())
        if total:
            self._write(
                memory=int(float(total[1]) * _MB),
                parameters=int(float(count[1]) * 1e9) if count else None,
            )

    def _checkpoint(self) -> None:
        from accel_bridge.patches.doctor.resume import differences

        for what, evidence, next in differences(self.args):
            self._finding(what, evidence, next)

    def _plain(self) -> None:
        plain = {name: _plain_value(value) for name, value in vars(self.args).items()}
        self._write(
            arguments={name: value for name, value in plain.items() if value is not _NOT_PLAIN}
        )

    def _finding(self, what: str, evidence: tuple[str, ...], next: str) -> None:
        self._write(finding={"what": what.rstrip("."), "evidence": list(evidence), "next": next})

    def _write(self, **document: Any) -> None:
        print(json.dumps(document), file=self._answer, flush=True)


_NOT_PLAIN: Final = object()


def _plain_value(value: Any) -> Any:
    """The value as JSON knows it; types of tensors by name."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, list | tuple):
        items = [_plain_value(item) for item in value]
        return _NOT_PLAIN if _NOT_PLAIN in items else items
    if type(value).__module__ == "torch":
        return str(value)
    return _NOT_PLAIN


def main(file: str) -> None:
    """Read, as far as it goes."""
    asked = json.load(sys.stdin)
    with open(file, "w", encoding="utf-8") as answer, contextlib.suppress(Stop):
        Reader(answer, asked["argv"], asked["ranks"]).run()


if __name__ == "__main__":
    main(sys.argv[1])
