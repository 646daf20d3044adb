"""A patch may put a package's own object at a name; its undo must not chase that object."""

from __future__ import annotations

import importlib

from accel_bridge.patching import Kind

from .conftest import Writer
from .support import engine, make_patch, snapshot


def test_a_class_of_the_package_stays_where_it_was(write: Writer) -> None:
    name = write(
        layers="class Linear: ...",
        specs="from PKG.layers import Linear as Own\nTELinear = None",
        other="from PKG.layers import Linear",
    )
    specs = importlib.import_module(f"{name}.specs")
    importlib.import_module(f"{name}.other")
    before = snapshot(name)
    patch = make_patch(f"{name}.specs:TELinear", lambda context: specs.Own, kind=Kind.ATTRIBUTE)
    with engine(patch):
        assert specs.TELinear is specs.Own
        # A module that is imported meanwhile takes the class from where it lives.
        later = importlib.import_module(f"{name}.layers").Linear
    assert snapshot(name) == before
    assert specs.TELinear is None
    assert later is specs.Own


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
