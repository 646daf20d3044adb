"""Calls of a plugin's code: a slow one is named, and none ends the process without a word."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn

from accel_bridge.process.environment import PLUGINS
from accel_bridge.process.log import warn

#: Seconds after which a call that goes on is named.
SLOW: Final = 5.0

_exit: Final[Callable[[int], NoReturn]] = os._exit


@contextmanager
def of_plugin(doing: str, name: str, source: str = "") -> Iterator[None]:
    """Around a call of a third party's code.

    ``os._exit`` in it raises SystemExit, which is kept as the plugin's failure like any error.

    :param doing: what is done, as ``importing``.
    :param source: the plugin's distribution or module.
    """
    where = f" of {source}" if source else ""
    line = (
        f"still {doing} plugin {name!r}{where} after {{}} s; {PLUGINS.name}=-{name} leaves it out"
    )
    done = threading.Event()

    def watch() -> None:
        if not done.wait(SLOW):
            warn(line.format(f"{SLOW:g}"))

    own, thread = os.getpid(), threading.get_ident()

    def refuse(status: int) -> NoReturn:
        # A fork of the plugin's, a thread, or whoever kept this function: they may.
        if done.is_set() or os.getpid() != own or threading.get_ident() != thread:
            _exit(status)
        raise SystemExit(f"it called os._exit({status})")

    before: Any = os._exit
    os._exit = refuse
    threading.Thread(target=watch, name="accel_bridge plugin", daemon=True).start()
    try:
        yield
    finally:
        done.set()
        os._exit = before
