"""Served as ``transformer_engine.pytorch.onnx_extensions`` where onnxscript is not installed.

Layers of some releases import it; the exporter itself needs onnxscript.
"""

from __future__ import annotations

from typing import Any, NoReturn

from accel_bridge.libraries.transformer_engine_torch import NotServedError


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotServedError(
            f"Transformer Engine's export to ONNX ({name}) needs onnxscript",
            evidence="onnxscript is not installed",
            next="pip install onnxscript",
        )

    return refuse
