"""Shim for Apex's operations on lists of tensors.

Each takes ``(chunk_size, noop_flag, tensor_lists, ...)`` and is called by
``apex.multi_tensor_apply.multi_tensor_applier``.
"""

from __future__ import annotations

from accel_bridge.libraries.adam import multi_tensor_adam, multi_tensor_adam_capturable
from accel_bridge.libraries.tensor_lists import adagrad as multi_tensor_adagrad
from accel_bridge.libraries.tensor_lists import axpby as multi_tensor_axpby
from accel_bridge.libraries.tensor_lists import l2norm as multi_tensor_l2norm
from accel_bridge.libraries.tensor_lists import lamb as multi_tensor_lamb
from accel_bridge.libraries.tensor_lists import lamb_mixed as multi_tensor_lamb_mp
from accel_bridge.libraries.tensor_lists import novograd as multi_tensor_novograd
from accel_bridge.libraries.tensor_lists import scale as multi_tensor_scale
from accel_bridge.libraries.tensor_lists import sgd as multi_tensor_sgd
from accel_bridge.libraries.tensor_lists import unscale_l2norm as multi_tensor_unscale_l2norm

#: The same with main parameters as a fifth list.
multi_tensor_adam_capturable_master = multi_tensor_adam_capturable
#: The same of any mixture of dtypes, as all here are.
multi_tensor_l2norm_mp = multi_tensor_l2norm

__all__ = [
    "multi_tensor_adagrad",
    "multi_tensor_adam",
    "multi_tensor_adam_capturable",
    "multi_tensor_adam_capturable_master",
    "multi_tensor_axpby",
    "multi_tensor_l2norm",
    "multi_tensor_l2norm_mp",
    "multi_tensor_lamb",
    "multi_tensor_lamb_mp",
    "multi_tensor_novograd",
    "multi_tensor_scale",
    "multi_tensor_sgd",
    "multi_tensor_unscale_l2norm",
]
