"""The device redirection engine: one device behind everything that torch calls CUDA.

The parts that a backend lists in ``DeviceSpec.parts`` where its device needs them:

- ``averages``: the communication backend has no ``ReduceOp.AVG``;
- ``mixed_gathers``: it mixes dtypes up that are gathered in one call;
- ``held_sends``: it reads a tensor's memory after ``isend`` has returned;
- ``ordered_collectives``: it runs several collectives of a group at a time;
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

from typing import TYPE_CHECKING

from accel_bridge.process.lazy import lazy_names

if TYPE_CHECKING:
    from accel_bridge.device._context import Context as Context
    from accel_bridge.device._context import Part as Part
    from accel_bridge.device._cuda_module import DeviceFunctionError as DeviceFunctionError
    from accel_bridge.device._devices import DeviceMap as DeviceMap
    from accel_bridge.device._devices import InvalidDevice as InvalidDevice
    from accel_bridge.device._devices import check_index as check_index
    from accel_bridge.device._distributed import averages as averages
    from accel_bridge.device._distributed import flat_collectives as flat_collectives
    from accel_bridge.device._distributed import held_sends as held_sends
    from accel_bridge.device._distributed import mixed_gathers as mixed_gathers
    from accel_bridge.device._distributed import ordered_collectives as ordered_collectives
    from accel_bridge.device._distributed import repeated_waits as repeated_waits
    from accel_bridge.device._distributed import uneven_gathers as uneven_gathers
    from accel_bridge.device._distributed import wide_reductions as wide_reductions
    from accel_bridge.device._functions import first_of_equals as first_of_equals
    from accel_bridge.device._functions import float16_matmuls_in as float16_matmuls_in
    from accel_bridge.device._functions import functions as functions
    from accel_bridge.device._functions import (
        materialized_flex_attention as materialized_flex_attention,
    )
    from accel_bridge.device._generators import generator_state as generator_state
    from accel_bridge.device._generators import host_generator as host_generator
    from accel_bridge.device._generators import set_generator_state as set_generator_state
    from accel_bridge.device._redirection import DeviceRedirection as DeviceRedirection
    from accel_bridge.device.device import Renamed as Renamed

# They import torch, and what only looks at devices does not.
__getattr__, __dir__, __all__ = lazy_names(__name__)
