"""Classes that translate the device arguments of their constructor."""

from __future__ import annotations

from typing import Any

from accel_bridge.device._devices import DeviceMap


def translating_class(
    real: type, devices: DeviceMap, *, module: str, name: str, numbers: bool
) -> type:
    """A class that makes instances of ``real`` and counts them as its own.

    ``isinstance`` and ``issubclass`` answer as ``real`` does; class attributes and subclassing
    work as with ``real``.

    :param module: the module under which the class is known, for pickle.
    :param numbers: whether an int among the arguments is a device.
    """
    translate = devices.translate if numbers else devices.translate_named
    real_meta = type(real)

    def call(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if cls is not proxy:
            return real_meta.__call__(cls, *args, **kwargs)
        if "device" in kwargs:
            kwargs["device"] = translate(kwargs["device"])
        return real(*[translate(value) for value in args], **kwargs)

    def check_instance(cls: Any, instance: object) -> bool:
        if cls is proxy:
            return isinstance(instance, real)
        return real_meta.__instancecheck__(cls, instance)

    def check_subclass(cls: Any, candidate: type) -> bool:
        if cls is proxy:
            return issubclass(candidate, real)
        return real_meta.__subclasscheck__(cls, candidate)

    meta: Any = type(
        f"{name}Meta",
        (real_meta,),
        {
            "__call__": call,
            "__instancecheck__": check_instance,
            "__subclasscheck__": check_subclass,
        },
    )
    proxy: type = meta(
        name, (real,), {"__doc__": real.__doc__, "__module__": module, "__wrapped__": real}
    )
    return proxy
