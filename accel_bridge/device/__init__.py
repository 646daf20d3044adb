"""The device redirection engine: one device behind everything that torch calls CUDA.

The parts that a backend lists in ``DeviceSpec.parts`` where its device needs them:

- ``averages``: the communication backend has no ``ReduceOp.AVG``;
- ``mixed_gathers``: it mixes dtypes up that are gathered in one call;
- ``held_sends``: it reads a tensor's memory after ``isend`` has returned;
- ``repeated_waits``: it never returns from a second wait for one transfer;
- ``uneven_gathers``: it refuses to gather tensors of different sizes;
- ``wide_reductions``: it cannot reduce float64;
- ``host_generator``: random operations on the device draw from ``torch.default_generator``;
- ``first_of_equals``: its ``topk`` decides ties otherwise than CUDA's;
- ``materialized_flex_attention``: PyTorch refuses FlexAttention's gradients there;
- ``functions(gelu=...)``: torch.nn.functional differs from what PyTorch documents;
- ``float16_matmuls_in(torch.float32)``: GEMMs of float16 matrices are slow.

A part is any function that takes a :class:`Context`. ``Renamed`` is for a device module that spells
names of ``torch.cuda`` differently.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from accel_bridge.process.lazy import lazy_names

if TYPE_CHECKING:
    from accel_bridge.device._context import Context, Part
    from accel_bridge.device._cuda_module import DeviceFunctionError
    from accel_bridge.device._devices import DeviceMap, InvalidDevice, check_index
    from accel_bridge.device._distributed import (
        averages,
        flat_collectives,
        held_sends,
        mixed_gathers,
        repeated_waits,
        uneven_gathers,
        wide_reductions,
    )
    from accel_bridge.device._functions import (
        first_of_equals,
        float16_matmuls_in,
        functions,
        materialized_flex_attention,
    )
    from accel_bridge.device._generators import generator_state, host_generator, set_generator_state
    from accel_bridge.device._redirection import DeviceRedirection
    from accel_bridge.device.device import Renamed

__all__ = [
    "Context",
    "DeviceFunctionError",
    "DeviceMap",
    "DeviceRedirection",
    "InvalidDevice",
    "Part",
    "Renamed",
    "averages",
    "check_index",
    "first_of_equals",
    "flat_collectives",
    "float16_matmuls_in",
    "functions",
    "generator_state",
    "held_sends",
    "host_generator",
    "materialized_flex_attention",
    "mixed_gathers",
    "repeated_waits",
    "set_generator_state",
    "uneven_gathers",
    "wide_reductions",
]

#: Loaded when asked for: they import torch, and what only looks at devices does not.
_PUBLIC: Final = {
    "averages": "device._distributed",
    "Context": "device._context",
    "Part": "device._context",
    "DeviceFunctionError": "device._cuda_module",
    "DeviceMap": "device._devices",
    "InvalidDevice": "device._devices",
    "check_index": "device._devices",
    "flat_collectives": "device._distributed",
    "functions": "device._functions",
    "generator_state": "device._generators",
    "host_generator": "device._generators",
    "set_generator_state": "device._generators",
    "mixed_gathers": "device._distributed",
    "float16_matmuls_in": "device._functions",
    "DeviceRedirection": "device._redirection",
    "Renamed": "device.device",
    "held_sends": "device._distributed",
    "repeated_waits": "device._distributed",
    "first_of_equals": "device._functions",
    "materialized_flex_attention": "device._functions",
    "uneven_gathers": "device._distributed",
    "wide_reductions": "device._distributed",
}

__getattr__, __dir__ = lazy_names(__name__, _PUBLIC)
