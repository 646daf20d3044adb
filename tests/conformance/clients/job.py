"""Run frameworks above Megatron, unedited, each in an environment of its own: `make clients`.

    python tests/conformance/clients/job.py [CLIENT ...] [--environment CLIENT=DIRECTORY]
        [--steps REGEX] [--minutes 15] [--directory .clients] [--emulate]

Installs what a client pins and this accel_bridge into DIRECTORY/CLIENT, types the commands as they
stand, checks what they computed, and writes results.json, from which docs/results.md
is made. Steps that are not run keep their last result.

With ``--minutes``, the clients that were not typed for longest are first, each with its first
steps in a third of that time. Installing counts; none is begun that could not end in it, and a step
that the end of the time cuts off keeps its last result.
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
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parents[2] / "tools")]

from json_lines import dumps  # noqa: E402
from processes import run_group  # noqa: E402

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
    parser.add_argument("--steps", default="", metavar="REGEX")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--directory", type=Path, default=ROOT / ".clients")
    parser.add_argument("--emulate", action="store_true", help="the steps on EMULATED NPUs too")
    options = parser.parse_args(words)
    given = dict(word.split("=", 1) for word in options.environment)
    chosen = [one for one in CLIENTS if not options.clients or one.name in options.clients]
    if options.minutes < float("inf"):
        chosen.sort(key=last_typed)
    failed, limit = 0, 60 * options.minutes
    over = time.monotonic() + limit
    end = over - 0.07 * limit  # the last step takes a minute too
    for client in chosen:
        if end - time.monotonic() < limit / 8:
            print(f"{client.name}: not typed: the time is over", flush=True)
            continue
        # Scripts of clients do not quote their own paths.
        directory = (options.directory / re.sub(r"[^\w.]+", "-", client.name)).absolute()
        try:
            work = ready(client, directory, given.get(client.name))
        except subprocess.CalledProcessError as error:
            print(f"{client.name}: FAILED: not installed: {error}", flush=True)
            failed += 1
            continue
        steps = [
            step
            for step in client.steps
            if options.emulate >= step.emulated and re.search(options.steps, step.name)
        ]
        until = min(time.monotonic() + limit / 3, end)
        for place, step in enumerate(steps):
            if time.monotonic() >= until:
                print(f"{client.name}: {len(steps) - place} more steps: no time", flush=True)
                break
            failed += not run(client, step, work, min(SECONDS, over - time.monotonic()))
    return int(failed > 0)


def ready(client: Client, directory: Path, given: str | None) -> Work:
    """Everything that its commands need, in an environment that is ``given`` or made."""
    environment = Path(given) if given else install(client, directory)
    work = Work(directory / "work", environment.absolute())
    prepare(work, any("models/" in step.command for step in client.steps))
    addresses = [address for address, _ in client.sources]
    for address, version in client.sources:
        checkout(work, address, version, f"-{version}" if addresses.count(address) > 1 else "")
    return work


def last_typed(client: Client) -> str:
    """The day of its newest result; empty if it has none."""
    table = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    known = table.get(client.name, {"steps": {}})["steps"]
    return max((one["date"] for one in known.values()), default="")


def install(client: Client, directory: Path) -> Path:
    """An environment with what the client pins, and with this accel_bridge, which records."""
    if not (directory / "bin/python").exists():
        venv.create(directory, with_pip=True)
    # uv links files to its cache: 17 environments with PyTorch would take 100 GB.
    uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", directory]
    uv += ["--cache-dir", directory.parent / ".uv"]
    for words in map(shlex.split, client.installs):
        variables = [word for word in words if re.match(r"[A-Z_]+=", word)]
        subprocess.run(["env", *variables, *uv, *words[len(variables) :]], check=True)
    subprocess.run([*uv, "--reinstall-package", "accel-bridge", f"{ROOT}[report]"], check=True)
    return directory


def prepare(work: Work, models: bool) -> None:
    """Programs, and once tiny ``models`` and data, which take the client's Transformers."""
    work.directory.mkdir(parents=True, exist_ok=True)
    shutil.copytree(HERE / "programs", work.directory, dirs_exist_ok=True)
    if models and not (work.directory / "models/rows/training.jsonl").exists():
        command = [work.environment / "bin/python", HERE / "tiny.py", "models"]
        subprocess.run(command, cwd=work.directory, check=True)


def checkout(work: Work, address: str, version: str, more: str) -> None:
    """The source at ``version``, in a directory of its name and ``more``."""
    place = work.directory / (address.rpartition("/")[2] + more)
    git, branch = ["git", "-C", place], f"at-{version}"
    subprocess.run(["git", "init", "--quiet", place], check=True)
    known = subprocess.run([*git, "checkout", "--quiet", branch], capture_output=True, check=False)
    if known.returncode != 0:
        subprocess.run([*git, "fetch", "--quiet", "--depth", "1", address, version], check=True)
        subprocess.run([*git, "checkout", "--quiet", "-B", branch, "FETCH_HEAD"], check=True)


def run(client: Client, step: Step, work: Work, seconds: float) -> bool:
    """Whether the command ended well and computed what it should; notes the result.

    :param seconds: its time; a step that is cut off before :data:`SECONDS` is neither.
    """
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
            status = run_group(
                ["bash", "-c", step.command],
                environ,
                work.directory,
                stream,
                lambda one: one.wait(seconds),
            )
        if status is None:
            if seconds < SECONDS:
                print(f"{client.name}: {step.name}: cut off: the time is over", flush=True)
                return True
            raise Failed(f"it did not end within {SECONDS} s")
        if status != 0:
            raise Failed(f"exit status {status}; see {log}")
        result, ok = step.check(work, log.read_text(errors="replace")), True
    except Failed as error:
        result, ok = str(error), False
    took = round(time.monotonic() - began)
    print(
        f"{client.name}: {step.name}: {'ok' if ok else 'FAILED'}: {result} ({took} s)",
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
    entry["installs"] = [*client.installs]
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
    RESULTS.write_text(dumps(table, 3, " ") + "\n")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
