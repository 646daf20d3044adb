"""The demo: text, tokenizer, data set, training, checkpoint, resume and loss curve, offline."""

from __future__ import annotations

from accel_bridge.apps.demo._run import run_demo

__all__ = ["run_demo"]
