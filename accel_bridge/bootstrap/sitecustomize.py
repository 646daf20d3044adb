"""Arms the hook in every Python whose ``PYTHONPATH`` has this folder, then runs the next one.

Python imports one ``sitecustomize``; the one that it would have found without us still runs.
"""

import importlib.machinery
import importlib.util
import os
import sys

import accel_bridge_hook  # type: ignore[import-not-found]

accel_bridge_hook.arm()


def _run_next() -> None:
    """Run the ``sitecustomize`` behind this one, under that name and with its own ``__file__``."""
    own = os.path.dirname(os.path.abspath(__file__))
    path = [folder for folder in sys.path if os.path.abspath(folder) != own]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_run_next()
