"""``import accel_bridge.auto``: activate the bridge for this process.

Put it before Megatron's imports. Undo with ``accel_bridge.deactivate()``.
"""

from accel_bridge._activation import activate
from accel_bridge._child import allow_one_process
from accel_bridge._failures import show_uncaught
from accel_bridge._ranks import end_with_parent

end_with_parent()
show_uncaught()
activate()
allow_one_process()
