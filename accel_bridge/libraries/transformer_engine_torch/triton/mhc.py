"""Transformer Engine's Triton kernels of hyper-connections, which need a device of Triton's."""

from __future__ import annotations

from typing import Any, NoReturn

from accel_bridge.libraries.transformer_engine_torch import NotServedError


def __getattr__(name: str) -> Any:
    if not name.startswith("mhc_"):
        raise AttributeError(name)

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotServedError(
            f"Transformer Engine's hyper-connections ({name}) are not served by accel_bridge",
            evidence="they are Triton kernels, and Triton has no device here",
            next="run on a CUDA device",
        )

    return refuse
