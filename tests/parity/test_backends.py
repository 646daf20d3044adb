"""The suite that every backend runs, on the backends of this machine."""

from __future__ import annotations

from accel_bridge.apps.testing.suite import *  # noqa: F403 - the suite's public names are its tests
