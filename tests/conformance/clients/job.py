"""Run frameworks above Megatron, unedited, each in an environment of its own: `make clients`.

    python tests/conformance/clients/job.py [CLIENT ...] [--environment CLIENT=DIRECTORY]
        [--source NAME=DIRECTORY] [--steps REGEX] [--minutes 15] [--directory .clients] [--emulate]

Installs what a client pins and this accel_bridge into DIRECTORY/CLIENT, types the commands as they
stand, checks what they computed, and writes results.json, from which docs/results.md
is made. Steps that are not run keep their last result.

With ``--minutes``, clients with the oldest results are first, and none is begun after that time,
in which installing does not count.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from conformance.clients.steps import Client, Failed, Step, Work  # noqa: E402
from conformance.clients.table import CLIENTS  # noqa: E402

RESULTS = HERE / "results.json"
ROOT = HERE.parents[2]
SECONDS = 1800


def main(words: list[str]) -> int:
    """The exit status: 1 if a step failed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("clients", nargs="*", metavar="CLIENT")
    parser.add_argument("--environment", action="append", default=[], metavar="CLIENT=DIRECTORY")
    parser.add_argument("--source", action="append", default=[], metavar="NAME=DIRECTORY")
    parser.add_argument("--steps", default="", metavar="REGEX")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--directory", type=Path, default=ROOT / ".clients")
    parser.add_argument("--emulate", action="store_true", help="the steps on EMULATED NPUs too")
    options = parser.parse_args(words)
    given = dict(word.split("=", 1) for word in options.environment)
    sources = dict(word.split("=", 1) for word in options.source)
    chosen = [one for one in CLIENTS if not options.clients or one.name in options.clients]
    if options.minutes < float("inf"):
        chosen.sort(key=last_typed)
    failed, spent = 0, 0.0
    for client in chosen:
        if spent >= 60 * options.minutes:
            print(f"{client.name}: not typed: the time is over", flush=True)
            continue
        directory = (options.directory / client.name).absolute()
        environment = (
            Path(given[client.name])
            if client.name in given
            else install(client, directory, sources)
        )
        work = Work(directory / "work", environment.absolute())
        prepare(work)
        addresses = [address for address, _ in client.sources]
        for address, version in client.sources:
            twice = addresses.count(address) > 1
            checkout(work, address, version, sources, f"-{version}" if twice else "")
        began = time.monotonic()
        for step in client.steps:
            if (step.emulated and not options.emulate) or not re.search(options.steps, step.name):
                continue
            failed += not run(client, step, work)
        spent += time.monotonic() - began
    return int(failed > 0)


def last_typed(client: Client) -> str:
    """The day of its oldest result on the CPU; empty if a step has none."""
    table = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    known = table.get(client.name, {"steps": {}})["steps"]
    days = (known.get(one.name, {"date": ""})["date"] for one in client.steps if not one.emulated)
    return min(days)


def install(client: Client, directory: Path, given: dict[str, str]) -> Path:
    """An environment with what the client pins, and with this accel_bridge, which records."""
    if not (directory / "bin/python").exists():
        venv.create(directory, with_pip=True)
    pip = [directory / "bin/python", "-m", "pip", "install", "--quiet"]
    for words in client.installs:
        variables = [word for word in words if re.match(r"[A-Z_]+=", word)]
        names = [from_source(word, given) for word in words[len(variables) :]]
        subprocess.run(["env", *variables, *pip, *names], check=True)
    subprocess.run([*pip, f"{ROOT}[report]"], check=True)
    return directory


def from_source(word: str, given: dict[str, str]) -> str:
    """``git+ADDRESS@COMMIT`` is the checkout that is given for it, if one is."""
    name = word.removeprefix("git+").partition("@")[0].rpartition("/")[2]
    return str(Path(given[name]).absolute()) if word.startswith("git+") and name in given else word


def prepare(work: Work) -> None:
    """Tiny models and data, once, and the programs of `tests/conformance/clients/programs`."""
    work.directory.mkdir(parents=True, exist_ok=True)
    shutil.copytree(HERE / "programs", work.directory, dirs_exist_ok=True)
    if not (work.directory / "models/dpo.jsonl").exists():
        command = [work.environment / "bin/python", HERE / "tiny.py", "models"]
        subprocess.run(command, cwd=work.directory, check=True)


def checkout(work: Work, address: str, version: str, given: dict[str, str], more: str) -> None:
    """The source at ``version``, in a directory of its name and ``more``; else one of ``given``."""
    name = address.rpartition("/")[2] + more
    place = work.directory / name
    if name in given:
        place.unlink(missing_ok=True)
        place.symlink_to(Path(given[name]).absolute())
    elif not place.exists():
        subprocess.run(["git", "init", "--quiet", place], check=True)
        fetch = ["git", "-C", place, "fetch", "--quiet", "--depth", "1", address, version]
        subprocess.run(fetch, check=True)
        subprocess.run(["git", "-C", place, "checkout", "--quiet", "FETCH_HEAD"], check=True)


def run(client: Client, step: Step, work: Work) -> bool:
    """Whether the command ended well and computed what it should; notes the result."""
    environ = {
        **os.environ,
        "PATH": f"{work.environment / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    log = work.log(step.name)
    # A training that was typed before would resume from its checkpoint.
    shutil.rmtree(work.directory / "out" / log.stem, ignore_errors=True)
    began = time.monotonic()
    try:
        with log.open("w") as stream:
            done = subprocess.run(
                ["bash", "-c", step.command],
                cwd=work.directory,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                timeout=SECONDS,
                check=False,
            )
        if done.returncode != 0:
            raise Failed(f"exit status {done.returncode}; see {log}")
        result, ok = step.check(work, log.read_text(errors="replace")), True
    except subprocess.TimeoutExpired:
        result, ok = f"it did not end within {SECONDS} s", False
    except Failed as error:
        result, ok = str(error), False
    seconds = round(time.monotonic() - began)
    print(
        f"{client.name}: {step.name}: {'ok' if ok else 'FAILED'}: {result} ({seconds} s)",
        flush=True,
    )
    note(client, step, ok, result, versions(client, work))
    return ok


def versions(client: Client, work: Work) -> dict[str, str]:
    """Of what the client is made of, as its environment has them."""
    code = "import importlib.metadata as m, sys; print(*(m.version(one) for one in sys.argv[1:]))"
    command = [work.environment / "bin/python", "-c", code, *client.shown]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    sources = {
        address.rpartition("/")[2]: version.removeprefix("core_v")[:7]
        for address, version in client.sources
    }
    return {**sources, **dict(zip(client.shown, found, strict=True))}


def note(client: Client, step: Step, ok: bool, result: str, found: dict[str, str]) -> None:
    """Keep the result in :data:`RESULTS`."""
    table = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    entry = table.setdefault(client.name, {"versions": {}, "steps": {}})
    torch = found.pop("torch")  # steps that were run in different environments differ in it
    entry["versions"] = {**found, "accel-bridge": importlib.metadata.version("accel-bridge")}
    entry["installs"] = [shlex.join(words) for words in client.installs]
    entry["steps"][step.name] = {
        "command": step.command,
        "ok": ok,
        "result": re.sub(r"/\S+/", "", result),
        "torch": torch,
        "date": time.strftime("%Y-%m-%d"),
    }
    order = [step.name for step in client.steps]
    known = {name: place for place, name in enumerate(order)}
    steps = sorted(entry["steps"].items(), key=lambda item: known.get(item[0], len(order)))
    entry["steps"] = {name: one for name, one in steps if name in known}
    names = [one.name for one in CLIENTS if one.name in table]
    table = {name: table[name] for name in names}
    RESULTS.write_text(lines(table))


def lines(value: dict[str, object], depth: int = 3) -> str:
    """JSON in which a step is a line."""
    pairs = (
        f"{' ' * (4 - depth)}{json.dumps(key)}: "
        + (lines(one, depth - 1) if depth > 1 and isinstance(one, dict) else json.dumps(one))
        for key, one in value.items()
    )
    return "{\n" + ",\n".join(pairs) + "\n}" + "\n" * (depth == 3)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
