"""Arms the hook in every Python whose ``PYTHONPATH`` has this directory, then runs the next one.

Python imports one ``sitecustomize``; the one that it would have found without us still runs. Every
Python reads this file, 2.7 too, and those too old for the hook go on as if it were not there.
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
    if sys.version_info < (3, 4):  # noqa: UP036
        import imp

        try:
            found = imp.find_module("sitecustomize", path)
        except ImportError:
            return
        imp.load_module("sitecustomize", *found)
        return
    import importlib.machinery
    import importlib.util

    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is None or spec.loader is None:
        return
    if sys.version_info < (3, 5):  # noqa: UP036
        spec.loader.load_module("sitecustomize")
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_run_next()
