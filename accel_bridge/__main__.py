"""``accel-bridge``, and ``python -m accel_bridge``: the command line."""

from __future__ import annotations

import signal


def main() -> int:
    """Run the command line; the exit status.

    Ctrl-C ends the process at once while its modules are imported, and when all is done: nothing
    has been begun that must be put in order, and a traceback of imports says nothing.
    """
    heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heard:  # a job in the background ignores it
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from accel_bridge.process.endings import listen

    listen()
    from accel_bridge.apps.cli.main import main as command

    if heard:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return command()
    except KeyboardInterrupt:  # while the command said how it ended
        return 128 + int(signal.SIGINT)
    finally:
        if heard:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    raise SystemExit(main())
