"""What tutorials on emulated NPUs need."""

from __future__ import annotations

from ascend.conftest import libraries

__all__ = ["libraries"]
