"""A patch may put a package's own object at a name; its undo must not chase that object."""

from __future__ import annotations

import importlib

from accel_bridge.patching import Kind

from .conftest import Writer
from .support import engine, make_patch


def test_one_foreign_object_at_two_names_goes_from_both(write: Writer) -> None:
    name = write(first="Choice = None", second="class Choice: ...")
    modules = [importlib.import_module(f"{name}.{module}") for module in ("first", "second")]
    originals = [module.Choice for module in modules]

    class StandIn:
        """What both names get."""

    patches = [
        make_patch(
            f"{name}.{module}:Choice", lambda context: StandIn, kind=Kind.ATTRIBUTE, id=module
        )
        for module in ("first", "second")
    ]
    with engine(*patches):
        assert [module.Choice for module in modules] == [StandIn, StandIn]
    assert [module.Choice for module in modules] == originals
