"""Commands that work, with slots in which bad values are put one at a time."""

from __future__ import annotations

import random
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from conformance.hostile.case import MOST_BYTES, Case
from conformance.hostile.fixtures import TRAINED
from conformance.hostile.values import (
    NO_FILE,
    NO_PLACE,
    NOT_READABLE,
    ODD_NAMES,
    SPARSE,
    Value,
    misspelt,
    numbers,
    strange_contents,
)


@dataclass(frozen=True)
class Slot:
    """A place in a command line.

    :param kind: of input.
    :param good: what stands there when another slot is bad.
    :param values: the bad values.
    :param outputs: files that come when the bad value is taken, ``{}`` for the value.
    """

    kind: str
    good: str
    values: tuple[Value, ...]
    outputs: tuple[str, ...] = ()


def output(good: str) -> Slot:
    """A file that the command writes."""
    return Slot("outputs", good, (*NO_PLACE, *NO_FILE, *ODD_NAMES), ("{}",))


def prefix(good: str, *outputs: str) -> Slot:
    """The beginning of the names of files that the command writes."""
    places = (value for value in NO_PLACE if "to" not in value.name or "/" in value.text)
    return Slot("outputs", good, (*places, *ODD_NAMES), outputs)


def directory(good: str) -> Slot:
    """A directory that the command makes or fills."""
    places = (value for value in NO_PLACE if value.text)
    files = (value for value in NO_FILE if not value.text.startswith((".", "new")))
    return Slot("outputs", good, (*places, *files), ("{}",))


def infile(good: str, suffix: str = "", any_content: bool = False) -> Slot:
    """A file that the command reads.

    :param suffix: of a file whose name is right.
    :param any_content: whether what is in it is somebody else's affair.
    """
    contents = () if any_content else (*strange_contents(suffix), SPARSE)
    return Slot("inputs", good, (*NOT_READABLE, Value("a directory", "photos"), *contents))


def number(
    good: str, least: float = 1, most: float = 2**31, whole: bool = True, capped: bool = False
) -> Slot:
    """A number in a range.

    :param capped: what is above the range is taken for its end.
    """
    return Slot("numbers", good, tuple(numbers(least, most, whole=whole, capped=capped)))


def word(good: str) -> Slot:
    """One of some words."""
    return Slot("words", good, tuple(misspelt(good)))


def text(good: str) -> Slot:
    """Any text, which is shown or passed on."""
    return Slot("words", good, ODD_NAMES)


@dataclass(frozen=True)
class Good:
    """A command line that works, and its slots by name.

    :param slow: its right form takes minutes: only what must be refused is tried.
    :param memory: that it may take, None for any.
    """

    line: str
    slots: dict[str, Slot]
    outputs: tuple[str, ...] = ()
    slow: bool = False
    memory: int | None = MOST_BYTES
    seconds: float = 60

    def words(self, bad: dict[str, str] | None = None) -> list[str]:
        """The words after ``python -m``, with bad values in some slots."""
        values = {name: slot.good for name, slot in self.slots.items()} | (bad or {})
        words = [word.format(**values) for word in shlex.split(self.line)]
        return ["accel_bridge", *words] if not words[0].startswith("accel_bridge") else words

    def case(
        self,
        kind: str,
        name: str,
        refused: bool | None,
        bad: dict[str, str] | None = None,
        **more: Any,
    ) -> Case:
        """It as a case, with bad values in some slots.

        :param more: fields of the case.
        """
        own = {"outputs": self.outputs, "memory": self.memory, "seconds": self.seconds}
        return Case(kind, name, self.words(bad), refused, **{**own, **more})


_PREFIX: Final = prefix("out", "{}_text_document.bin", "{}_text_document.idx")
_NULL: Final = "--tokenizer-type NullTokenizer --vocab-size 255"
_MADE: Final = ("out_text_document.bin", "out_text_document.idx")
_TRAIN: Final = shlex.join([*TRAINED, "--train-iters", "2"])

GOOD: Final[Sequence[Good]] = (
    Good(
        "preprocess --input {text} --output-prefix {prefix} --tokenizer-type {type} "
        "--vocab-size {vocabulary} --workers {workers} --partitions {partitions} "
        "--log-interval {interval} --json-keys {key}",
        {
            "text": infile("text.jsonl", suffix=".jsonl"),
            "prefix": _PREFIX,
            "type": word("NullTokenizer"),
            "vocabulary": number("255", least=61, most=2**31 - 2),
            "workers": number("1", most=2**31 - 1),
            "partitions": number("1", most=2**31 - 1),
            "interval": number("1000", most=2**31 - 1),
            "key": word("text"),
        },
        outputs=_MADE,
    ),
    Good(
        f"preprocess --input {{table}} --input-format {{format}} --output-prefix out {_NULL} "
        "--on-error {mode} --error-log {log}",
        {
            "table": infile("table.csv", suffix=".csv"),
            "format": word("csv"),
            "mode": word("skip"),
            "log": output("errors.jsonl"),
        },
        outputs=(*_MADE, "errors.jsonl"),
    ),
    Good(
        "preprocess --input text.jsonl --output-prefix out --tokenizer-type GPT2BPETokenizer "
        "--vocab-file {vocabulary} --merge-file {merges} --compat {compat}",
        {
            "vocabulary": infile("vocab.json", suffix=".json"),
            "merges": infile("merges.txt", suffix=".txt"),
            "compat": word("0.19"),
        },
        outputs=_MADE,
    ),
    *(
        Good(
            f"preprocess --input text.jsonl --output-prefix out --tokenizer-type {kind} "
            "--tokenizer-model {model}",
            {"model": infile("none", suffix=suffix)},
            outputs=_MADE,
            memory=None,  # transformers imports what it finds
        )
        for kind, suffix in (
            ("HuggingFaceTokenizer", ".json"),
            ("SentencePieceTokenizer", ".model"),
            ("Llama2Tokenizer", ".model"),
            ("TikTokenizer", ".json"),
        )
    ),
    Good(
        f"preprocess --input - --input-format jsonl --output-prefix out {_NULL} "
        "--workers-to-check {count} --max-documents {documents}",
        {"count": number("1", most=2**31 - 1), "documents": number("9", most=2**31 - 1)},
        outputs=_MADE,
    ),
    Good(
        "inspect {pair} --samples {samples} --sample-tokens {tokens} --vocab-size {vocabulary}",
        {
            "pair": infile("data_text_document", suffix=".idx"),
            "samples": number("2", least=0, most=2**31 - 1),
            "tokens": number("4", least=0, most=2**31 - 1),
            "vocabulary": number("255", least=61, most=2**31 - 1),
        },
    ),
    Good(
        "inspect data_text_document --tokenizer-type {type} --vocab-file {vocabulary} "
        "--merge-file {merges}",
        {
            "type": word("GPT2BPETokenizer"),
            "vocabulary": infile("vocab.json", suffix=".json"),
            "merges": infile("merges.txt", suffix=".txt"),
        },
    ),
    Good(
        "parity compare {a} {b} --third {third} --png {png} --html {html}",
        {
            "a": infile("a.rec", suffix=".rec"),
            "b": infile("b.rec", suffix=".rec"),
            "third": infile("b.rec", suffix=".rec"),
            "png": output("x.png"),
            "html": output("x.html"),
        },
        outputs=("x.png", "x.html"),
    ),
    Good(
        "parity kernels --backend {backend} --kernel {kernel} --jobs {jobs} --html {html}",
        {
            "backend": word("cpu"),
            "kernel": word("rotary"),
            "jobs": number("1", capped=True),
            "html": output("x.html"),
        },
        outputs=("x.html",),
        memory=None,
        seconds=120,
    ),
    Good(
        f"parity record --out {{out}} --every {{every}} --nproc-per-node {{count}} -- {_TRAIN}",
        {
            "out": output("run.rec"),
            "every": number("5", most=2**63, capped=True),
            "count": number("1", most=10),
        },
        outputs=("run.rec",),
        slow=True,
    ),
    Good(
        "demo --out {out} --iterations {iterations} --resumed {resumed}",
        {
            "out": directory("made"),
            "iterations": number("9", most=1_000_000),
            "resumed": number("3", most=1_000_000),
        },
        outputs=("made",),
        slow=True,
    ),
    Good(
        "env --no-imports --wait {seconds}",
        {"seconds": number("1", least=0, most=1e9, whole=False)},
    ),
    Good("env --no-imports --json", {}),
    Good(
        "tokenizer train --input {text} --output {directory} --vocab-size {size} --kind {kind} "
        "--json-keys {key} --input-format {format}",
        {
            "format": word("jsonl"),
            "text": infile("text.jsonl", suffix=".jsonl"),
            "directory": directory("made"),
            "size": number("300", least=257, most=2**31 - 1, capped=True),
            "kind": word("bpe"),
            "key": word("text"),
        },
        outputs=("made",),
    ),
    Good(
        "doctor --only {check} --wait {seconds}",
        {
            "check": word("variables"),
            "seconds": number("5", least=1e-12, most=1e9, whole=False),
        },
    ),
    Good(
        "plot {log} b.rec --png {png} --html {html} --smooth {smooth} --names {names}",
        {
            "log": infile("run.log", suffix=".log"),
            "png": output("x.png"),
            "html": output("x.html"),
            "smooth": number("2", most=2**31 - 1, capped=True),
            "names": word("one,two"),
        },
        outputs=("x.png", "x.html"),
    ),
    Good("plot run.log --json --title {title}", {"title": text("x")}),
    Good("completion {shell}", {"shell": word("bash")}),
    Good("patches --against {version} --json", {"version": word("0.19.0")}),
    Good(
        "doctor --only {check} --skip {other} -- --num-layers {layers}",
        {"check": word("variables"), "other": word("network"), "layers": number("2", most=2**31)},
        memory=None,
    ),
    Good("doctor --list", {}),
    Good("backends", {}),
    Good("backends --json", {}),
    Good("plugins", {}),
    Good("libraries", {}),
    Good("libraries --json", {}),
    Good("patches --against {version}", {"version": infile("0.19.0")}),
    Good(
        "run --record {record} -- true",
        {"record": output("run.rec")},
        outputs=("run.rec",),
    ),
    Good("run {script} a b", {"script": infile("script.py", any_content=True)}, memory=None),
    Good("run -- bash train.sh {word}", {"word": text("a")}, memory=None),
    Good("run --progress -- {command}", {"command": word("true")}),
    Good("run -m {module}", {"module": word("this")}, memory=None),
    Good("run -- {command}", {"command": word("true")}),
    Good(
        "accel_bridge.run {script}", {"script": infile("script.py", any_content=True)}, memory=None
    ),
    Good(
        "pretrain --nproc-per-node {count} --nnodes {nodes} --node-rank {rank} --master-port "
        f"{{port}} --max-restarts {{restarts}} -- {_TRAIN}",
        {
            "count": number("1", most=10),
            "nodes": number("1", most=1000),
            "rank": number("0", least=0, most=1000),
            "port": number("29511", least=0, most=65535),
            "restarts": number("0", least=0, most=2**63),
        },
        slow=True,
    ),
    Good("emulate-ascend --devices {count} -- true", {"count": number("1", most=64)}, memory=None),
    Good("emulate-ascend --memory {size} -- true", {"size": word("16g")}, memory=None),
    Good("--version", {}),
    Good("--help", {}),
)


def slot_cases(kind: str, _: random.Random) -> Iterator[Case]:
    """Every bad value of every slot of a kind."""
    slots = ((good, name, slot) for good in GOOD for name, slot in good.slots.items())
    for good, name, slot in slots:
        for value in slot.values if slot.kind == kind else ():
            if value.text == slot.good or (good.slow and not value.refused):
                continue
            outputs = [form.format(value.text) for form in slot.outputs if not value.refused]
            yield good.case(
                kind,
                f"{' '.join(good.words()[1:3])}: {name}: {value.name}",
                value.refused,
                {name: value.text},
                prepare=value.prepare,
                mounts=value.mounts,
                outputs=(*good.outputs, *outputs),
                verdict="NOT SOUND" if good.line.startswith("inspect") else "",
            )
