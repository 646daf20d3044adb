"""How many random examples a test takes: all of them, a tenth or, in `make hostile`, ten times."""

from __future__ import annotations

import os

from hypothesis import settings

#: Set by `make check`.
FEW = "FEW_EXAMPLES" in os.environ
#: Set by `make hostile`.
TIMES = int(os.environ.get("MANY_EXAMPLES", "1"))


def examples(count: int) -> settings:
    """Settings for ``count`` examples, at any speed: the machine may be busy."""
    return settings(max_examples=max(count // 10, 10) if FEW else count * TIMES, deadline=None)
