"""Starts a training run before its data are there: ``pretrain --runner "accel_bridge.apps... "``.

PyTorch and Megatron take several seconds to import, as long as a small tokenizer takes to train.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import sys

from accel_bridge.run import main

#: The line on standard input that lets the training begin.
GO = "go\n"


def prepare(argv: list[str]) -> None:
    """Import what the script ``[-m] NAME ...`` imports, with the bridge active."""
    from accel_bridge.bridge.activation import activate
    from accel_bridge.process.child import environment, stand_down
    from accel_bridge.process.ranks import set_single_process

    stand_down()
    sys.argv = argv[argv[0] == "-m" :]
    set_single_process(os.environ)
    os.environ.update(environment(os.environ))
    activate()
    if argv[0] == "-m":
        runpy.run_module(argv[1], run_name="prepared")
    else:
        runpy.run_path(argv[0], run_name="prepared")


if __name__ == "__main__":
    given = sys.argv[1:]
    with contextlib.suppress(Exception):  # what is wrong is said when the script runs
        prepare(given)
    if sys.stdin.readline() == GO:  # else the demo has ended
        raise SystemExit(main(given))
