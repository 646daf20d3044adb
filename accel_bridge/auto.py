"""``import accel_bridge.auto``: activate the bridge for this process.

Put it before Megatron's imports. Undo with ``accel_bridge.deactivate()``.
"""

from accel_bridge.bridge.activation import activate
from accel_bridge.bridge.child import allow_one_process
from accel_bridge.process.endings import show_uncaught
from accel_bridge.process.meeting import place
from accel_bridge.process.ranks import end_with_parent

end_with_parent()
show_uncaught()
activate()
allow_one_process()
place()
