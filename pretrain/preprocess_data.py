"""Drop-in for Megatron-LM's ``tools/preprocess_data.py``: the same flags, the same bytes."""

from __future__ import annotations

import sys

from accel_bridge.pretrain.preprocess import main

if __name__ == "__main__":
    sys.exit(main())
