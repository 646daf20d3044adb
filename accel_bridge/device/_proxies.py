"""Classes that translate the device arguments of their constructor."""

from __future__ import annotations

import inspect
from typing import Any

from accel_bridge.device._devices import DeviceMap


def translating_class(
    real: type,
    devices: DeviceMap,
    *,
    module: str,
    name: str,
    numbers: bool,
    optional: tuple[str, ...] = (),
) -> type:
    """A class that makes instances of ``real`` and counts them as its own.

    ``isinstance`` and ``issubclass`` answer as ``real`` does; class attributes and subclassing
    work as with ``real``.

    :param module: the module under which the class is known, for pickle.
    :param numbers: whether an int among the arguments is a device.
    :param optional: keywords that are left out where ``real`` does not know them.
    """
    unknown = tuple(word for word in optional if not _takes(real, word))
    translate = devices.translate if numbers else devices.translate_named
    real_meta = type(real)

    def call(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if cls is not proxy:
            return real_meta.__call__(cls, *args, **kwargs)
        for word in unknown:
            kwargs.pop(word, None)
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


def _takes(real: type, word: str) -> bool:
    """Whether the constructor has the keyword; True where it does not say what it has."""
    try:
        parameters = inspect.signature(real).parameters.values()
    except ValueError:
        return True
    return any(one.name == word or one.kind is one.VAR_KEYWORD for one in parameters)
