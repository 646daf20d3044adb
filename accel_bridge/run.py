"""``python -m accel_bridge.run SCRIPT ...``: any script, unedited, with the bridge active.

Also ``torchrun ... -m accel_bridge.run SCRIPT ...`` and ``-m MODULE`` in place of the script.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import traceback
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from accel_bridge.errors import BridgeError
from accel_bridge.process import progress
from accel_bridge.process.child import environment, stand_down
from accel_bridge.process.endings import as_usual, listen, of_uncaught, report
from accel_bridge.process.meeting import check_environment, place
from accel_bridge.process.ranks import (
    check_variables,
    die_with_launcher,
    is_launched,
    set_single_process,
)

USAGE = """\
usage: python -m accel_bridge.run [-m] SCRIPT [ARGUMENTS ...]

Runs a Python script (or, with -m, a module) with the bridge active, as `python SCRIPT` would.
With torchrun: torchrun [TORCHRUN OPTIONS] -m accel_bridge.run SCRIPT [ARGUMENTS ...]
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Activate the bridge and run the script named by ``argv``; the exit status on failure.

    The script's own exit status and the exceptions that nobody explains pass through.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    if not argv or argv[0] in ("-h", "--help"):
        print(USAGE, end="", file=sys.stdout if argv else sys.stderr)
        return 0 if argv else 2
    try:
        as_usual()
        listen()
        run(argv)
    except KeyboardInterrupt:
        return 128 + int(signal.SIGINT)
    except BaseException as error:  # torch's CheckpointException is no Exception
        explained = of_uncaught(error)
        if explained is None:
            if isinstance(error, SyntaxError) and _is_of_script(error):
                # As Python says it: none of the frames is the script's.
                traceback.print_exception(error.with_traceback(None), chain=False)
                return 1
            raise
        status = report(error, explained)
        if isinstance(error, SystemExit):
            raise  # restarters know its status
        return status
    return 0


def run(argv: list[str]) -> None:
    """Run ``[-m] SCRIPT ARGUMENTS`` as ``__main__`` in this process."""
    given = list(argv)
    as_module = argv[0] == "-m"
    if as_module:
        argv = argv[1:]
    if not argv or (not as_module and not os.path.isfile(argv[0])):
        raise BridgeError(
            f"there is no script {argv[0]!r}" if argv else "-m needs the name of a module",
            evidence=f"looked in {Path.cwd()}",
            next="give the path of a Python file, or -m and the name of a module",
        )
    if not as_module:
        _check_readable(argv[0])
    stand_down()
    check_variables(os.environ)
    check_environment()
    die_with_launcher()
    if not is_launched(os.environ) and progress.is_wanted(default=False):
        raise SystemExit(progress.run([sys.executable, "-m", "accel_bridge.run", *given]))
    from accel_bridge.bridge.activation import activate

    # Before the activation: an adaptor that takes over may parse it.
    sys.argv = list(argv)
    set_single_process(os.environ)
    os.environ.update(environment(os.environ))  # for the processes that the script starts
    activate()
    place()
    if as_module:
        # As `python -m` does: the working directory goes first on the path.
        sys.path.insert(0, os.getcwd())
        _check_module(argv[0])
        runpy.run_module(argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(argv[0]).resolve().parent))
        runpy.run_path(argv[0], run_name="__main__")


def _is_of_script(error: SyntaxError) -> bool:
    """Whether the script itself cannot be compiled; what it imports has frames to show."""
    trace = error.__traceback__
    files = []
    while trace is not None:
        files.append(trace.tb_frame.f_code.co_filename)
        trace = trace.tb_next
    own = __file__, "<frozen runpy>", "<frozen importlib"
    return all(file.startswith(own) or file == runpy.__file__ for file in files)


def _check_readable(script: str) -> None:
    """It must be possible to read the script: what it then does is its own affair."""
    try:
        with open(script, "rb") as file:
            file.read(1)
    except OSError as error:
        raise BridgeError(
            f"the script {script!r} cannot be read",
            evidence=f"{type(error).__name__}: {error}",
            next="give the path of a Python file that this user may read",
        ) from error


def _check_module(name: str) -> None:
    """There must be such a module; what it imports is its own affair."""
    try:
        dotted = all(part.isidentifier() for part in name.split("."))
        found = find_spec(name) if dotted else None
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise  # a package that it is in lacks something else
        found = None
    except ValueError:
        found = None
    if found is None:
        raise BridgeError(
            f"there is no module {name!r}",
            evidence=f"looked in {Path.cwd()} and on Python's path",
            next="give the name that `python -m` takes, or the path of a script without -m",
        )


if __name__ == "__main__":
    raise SystemExit(main())
