"""How many random examples a test takes: all of them, or a tenth in `make check`."""

from __future__ import annotations

import os

from hypothesis import settings

#: Set by `make check`.
FEW = "FEW_EXAMPLES" in os.environ


def examples(count: int) -> settings:
    """Settings for ``count`` examples, at any speed: the machine may be busy."""
    return settings(max_examples=max(count // 10, 10) if FEW else count, deadline=None)
