"""Arms the hook in every Python whose ``PYTHONPATH`` has this directory, then runs the next one.

Python imports one ``sitecustomize``; the one that it would have found without us still runs. Every
Python reads this file, 2.7 too; what is too old for the hook goes on without it.
"""

import os
import sys

if sys.version_info >= (3, 7):  # noqa: UP036
    import accel_bridge_hook  # type: ignore[import-not-found]

    accel_bridge_hook.arm()


def _run_next():  # type: () -> None
    """Run the ``sitecustomize`` behind this one, under that name and with its own ``__file__``."""
    own = os.path.dirname(os.path.abspath(__file__))
    path = [directory for directory in sys.path if os.path.abspath(directory) != own]
    import importlib.machinery
    import importlib.util

    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if sys.version_info >= (3, 5):  # noqa: UP036
    _run_next()
