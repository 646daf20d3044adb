"""The device redirection engine: one device behind everything that torch calls CUDA.

The parts that a backend lists in ``DeviceSpec.parts`` where its device needs them:

- ``averages``: the communication backend has no ``ReduceOp.AVG``;
- ``mixed_gathers``: it mixes dtypes up that are gathered in one call;
- ``held_sends``: it reads a tensor's memory after ``isend`` has returned;
- ``uneven_gathers``: it refuses to gather tensors of different sizes;
- ``wide_reductions``: it cannot reduce float64;
- ``host_generator``: random operations on the device draw from ``torch.default_generator``;
- ``first_of_equals``: its ``topk`` decides ties otherwise than CUDA's;
- ``functions(gelu=...)``: torch.nn.functional differs from what PyTorch documents;
- ``float16_products_in(torch.float32)``: products of float16 matrices are slow.

A part is any function that takes a :class:`Context`. ``Renamed`` is for a device module that spells
names of ``torch.cuda`` differently.
"""

from __future__ import annotations

from accel_bridge.device._averages import averages
from accel_bridge.device._context import Context, Part
from accel_bridge.device._cuda_module import DeviceFunctionError
from accel_bridge.device._flat_collectives import flat_collectives
from accel_bridge.device._functions import functions
from accel_bridge.device._generators import generator_state, host_generator, set_generator_state
from accel_bridge.device._mixed_gathers import mixed_gathers
from accel_bridge.device._products import float16_products_in
from accel_bridge.device._redirection import DeviceRedirection
from accel_bridge.device._renamed import Renamed
from accel_bridge.device._sends import held_sends
from accel_bridge.device._ties import first_of_equals
from accel_bridge.device._uneven_gathers import uneven_gathers
from accel_bridge.device._wide_reductions import wide_reductions

__all__ = [
    "Context",
    "DeviceFunctionError",
    "DeviceRedirection",
    "Part",
    "Renamed",
    "averages",
    "first_of_equals",
    "flat_collectives",
    "float16_products_in",
    "functions",
    "generator_state",
    "held_sends",
    "host_generator",
    "mixed_gathers",
    "set_generator_state",
    "uneven_gathers",
    "wide_reductions",
]
