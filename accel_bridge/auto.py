"""``import accel_bridge.auto``: activate the bridge for this process.

Put it before Megatron's imports. Undo with ``accel_bridge.deactivate()``.
"""

from accel_bridge._activation import activate
from accel_bridge._failures import show_uncaught

show_uncaught()
activate()
