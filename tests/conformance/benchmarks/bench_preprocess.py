"""CPU time of preprocessing against Megatron's own tools, over one corpus and in one run.

    python tests/conformance/benchmarks/bench_preprocess.py --vocab-file V --merge-file M \\
        --corpus prose.jsonl chinese.jsonl --megatron TREE --megatron-main TREE

``--megatron`` is a source tree whose tools/preprocess_data.py is run with the installed
megatron-core; ``--megatron-main`` one whose tools/preprocess_data_fast.py is run with that tree's
own code. Without them only this tool is measured. CPU-seconds are those of the process and all
its descendants: wall time says little on a machine that others use.
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import importlib.metadata
import itertools
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Measurement:
    """One run of one tool."""

    cpu_seconds: float
    prefix: Path


@dataclass(frozen=True)
class Tool:
    """A command line to measure; ``workers`` is added where it takes them."""

    name: str
    command: list[str]
    environment: dict[str, str]
    takes_workers: bool = True


def main() -> int:
    """Measure every tool on every corpus and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--vocab-file", type=Path, required=True, help="GPT-2's vocab.json")
    parser.add_argument("--merge-file", type=Path, required=True, help="GPT-2's merges.txt")
    parser.add_argument(
        "--corpus", type=Path, nargs="*", default=[], help="JSON lines of a kind, .gz or not"
    )
    parser.add_argument("--megatron", type=Path, help="source tree of the released Megatron")
    parser.add_argument("--megatron-main", type=Path, help="source tree of Megatron's main branch")
    parser.add_argument("--megabytes", type=int, default=145, help="size of the mixed corpus")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each; the median counts")
    parser.add_argument("--slow-repeat", type=int, default=1, help="runs of Megatron's own tool")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", nargs="*", help="names of corpora")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        tools = make_tools(arguments, directory)
        warm_up(tools, directory)
        corpora = make_corpora(arguments, directory)
        print(header())
        for corpus in corpora:
            if not arguments.only or corpus.stem in arguments.only:
                compare(corpus, tools, arguments, directory)
    return 0


def warm_up(tools: Sequence[Tool], directory: Path) -> None:
    """Run each tool once on a line, so that none compiles its Python files while measured."""
    line = write(directory / "warm-up.jsonl", ["One line."])
    for tool in tools:
        measure(tool, line, 1, directory)


def environment_of(tool: Tool, directory: Path) -> dict[str, str]:
    """As on a user's machine, where Python keeps what it compiled."""
    environ = {**os.environ, **tool.environment, "PYTHONPYCACHEPREFIX": str(directory / "pycache")}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    return environ


def header() -> str:
    """What was measured, when, and on what."""
    versions = [
        f"{package} {importlib.metadata.version(package)}"
        for package in ("gigatoken", "tokenizers", "orjson", "numpy", "megatron-core")
        if importlib.util.find_spec(package.replace("-core", ""))
    ]
    machine = f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}"
    return (
        f"{datetime.date.today()}; {machine}; {', '.join(versions)}\n\n"
        "| corpus | tool | CPU-s | times ours | MB per CPU-s | bytes |\n"
        "|---|---|---:|---:|---:|---|"
    )


def compare(
    corpus: Path, tools: Sequence[Tool], arguments: argparse.Namespace, directory: Path
) -> None:
    """One corpus with every tool, the first of which is ours."""
    megabytes = corpus.stat().st_size / 1e6
    ours: Measurement | None = None
    for tool in tools:
        repeat = (
            arguments.slow_repeat if tool.name.endswith("preprocess_data.py") else arguments.repeat
        )
        runs = [measure(tool, corpus, arguments.workers, directory) for _ in range(repeat)]
        found = sorted(runs, key=lambda run: run.cpu_seconds)[len(runs) // 2]
        ours = ours or found
        print(
            f"| {corpus.stem} {megabytes:.1f} MB | {tool.name} | {found.cpu_seconds:.2f} "
            f"| {found.cpu_seconds / ours.cpu_seconds:.1f} | {megabytes / found.cpu_seconds:.1f} "
            f"| {'same' if same_bytes(ours.prefix, found.prefix) else 'DIFFERENT'} |",
            flush=True,
        )


def measure(tool: Tool, corpus: Path, workers: int, directory: Path) -> Measurement:
    """Run ``tool`` once, to the end."""
    prefix = directory / tool.name.replace("/", "_").replace(" ", "_") / corpus.stem
    prefix.parent.mkdir(exist_ok=True)
    command = [*tool.command, "--input", str(corpus), "--output-prefix", str(prefix)]
    command += ["--append-eod", *(["--workers", str(workers)] if tool.takes_workers else [])]
    log, before = directory / "log", os.times()
    with log.open("w") as output:
        done = subprocess.run(
            command,
            cwd=directory,
            env=environment_of(tool, directory),
            stdout=output,
            stderr=output,
        )
    if done.returncode != 0:
        raise SystemExit(f"{tool.name} failed:\n{log.read_text()[-2000:]}")
    after = os.times()
    user = after.children_user - before.children_user
    return Measurement(user + after.children_system - before.children_system, prefix)


def same_bytes(left: Path, right: Path) -> bool:
    """Both pairs of files are the same."""
    return all(
        Path(f"{left}_text_document{suffix}").read_bytes()
        == Path(f"{right}_text_document{suffix}").read_bytes()
        for suffix in (".bin", ".idx")
    )


def make_tools(arguments: argparse.Namespace, directory: Path) -> list[Tool]:
    """Ours first. Megatron looks for a directory ``gpt2`` in the working directory."""
    gpt2 = directory / "gpt2"
    gpt2.mkdir()
    shutil.copy(arguments.vocab_file, gpt2 / "vocab.json")
    shutil.copy(arguments.merge_file, gpt2 / "merges.txt")
    (gpt2 / "config.json").write_text('{"model_type": "gpt2"}')
    (gpt2 / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    flags = ["--tokenizer-type", "GPT2BPETokenizer", "--vocab-file", str(gpt2 / "vocab.json")]
    flags += ["--merge-file", str(gpt2 / "merges.txt")]
    ours = [sys.executable, "-m", "accel_bridge.pretrain.preprocess", *flags]
    tools = [Tool("accel-bridge preprocess", ours, {})]
    offline = {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    if arguments.megatron_main:
        script = str(arguments.megatron_main / "tools/preprocess_data_fast.py")
        environment = {**offline, "PYTHONPATH": str(arguments.megatron_main)}
        command = [sys.executable, script, *flags, "--use-gigatoken"]
        tools.append(Tool("main preprocess_data_fast.py", command, environment, False))
    if arguments.megatron:
        script = str(arguments.megatron / "tools/preprocess_data.py")
        command = [sys.executable, script, *flags, "--log-interval", "1000000"]
        tools.append(Tool("0.19 preprocess_data.py", command, offline))
    return tools


def make_corpora(arguments: argparse.Namespace, directory: Path) -> list[Path]:
    """One of each file, of a kind, then all with code: ``unique`` and, over and over, ``mixed``."""
    code = list(source_code())
    kinds = {path.name.partition(".")[0]: list(texts_of(path)) for path in arguments.corpus}
    kinds = kinds or {"prose": [text for text in docstrings(code) if len(text) > 200]}
    corpora = [write(directory / f"{kind}.jsonl", texts) for kind, texts in kinds.items()]
    kinds["code"] = code
    unique = dict.fromkeys(interleave(*kinds.values()))
    corpora.append(write(directory / "unique.jsonl", list(unique)))
    size = arguments.megabytes * 1_000_000 // len(kinds)
    mixed = [text for texts in kinds.values() for text in take(texts, size)]
    corpora.append(write(directory / "mixed.jsonl", interleave(mixed[::2], mixed[1::2])))
    return corpora


def texts_of(path: Path) -> Iterator[str]:
    """Texts of a file of JSON lines."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)["text"]


def source_code() -> Iterator[str]:
    """Python's own library: real code that every machine has."""
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if "site-packages" in path.parts:
            continue
        try:
            yield path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


def docstrings(code: Sequence[str]) -> Iterator[str]:
    """Prose, more or less."""
    for text in code:
        yield from text.split('"""')[1::2]


def take(texts: Sequence[str], size: int) -> Iterator[str]:
    """Texts of ``size`` bytes together, the last included, over and over."""
    for text in itertools.cycle(texts):
        yield text
        size -= len(text.encode())
        if size <= 0:
            return


def interleave(*kinds: Sequence[str]) -> list[str]:
    """One of each in turn, so that no part of the corpus is of one kind."""
    turns = itertools.zip_longest(*kinds)
    return [text for turn in turns for text in turn if text is not None]


def write(path: Path, texts: Sequence[str]) -> Path:
    """JSON lines, as most tools write them: not ASCII only."""
    with open(path, "w", encoding="utf-8") as file:
        for text in texts:
            file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
    return path


if __name__ == "__main__":
    sys.exit(main())
