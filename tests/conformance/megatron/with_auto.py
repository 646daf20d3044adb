"""A script with the one line that users may add: python with_auto.py SCRIPT ARGUMENTS..."""

import accel_bridge.auto  # noqa: F401, I001

import runpy
import sys

del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
