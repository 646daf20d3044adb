"""``python -m accel_bridge``: the same as ``accel-bridge``."""

from __future__ import annotations

from accel_bridge.apps.cli.main import main

raise SystemExit(main())
