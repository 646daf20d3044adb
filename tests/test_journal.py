from __future__ import annotations

from types import ModuleType
from typing import Any

from accel_bridge.process.journal import ABSENT, Journal, raw_attribute


class Base:
    def inherited(self) -> None: ...

    @staticmethod
    def static() -> None: ...


def test_undo_brings_back_descriptors_and_absence() -> None:
    class Child(Base):
        pass

    journal = Journal()
    static = raw_attribute(Base, "static")
    journal.set(Base, "static", staticmethod(lambda: None))
    journal.set(Child, "inherited", lambda self: 1)
    assert raw_attribute(Base, "static") is not static
    assert journal.undo() == ()
    assert raw_attribute(Base, "static") is static
    assert raw_attribute(Child, "inherited") is ABSENT


def test_undo_of_items() -> None:
    table: dict[str, Any] = {"a": 1}
    journal = Journal()
    journal.set_item(table, "a", 2)
    journal.set_item(table, "b", 3)
    journal.undo()
    assert table == {"a": 1}


def test_changes_left_alone_stay_in_the_journal() -> None:
    module = ModuleType("m")
    module.__dict__.update(a=1, b=2)
    journal = Journal()
    journal.set(module, "a", 10)
    journal.set(module, "b", 20)
    module.a = "foreign"
    left = journal.undo(
        unless=lambda change: raw_attribute(change.owner, change.name) != change.new
    )
    assert [change.name for change in left] == ["a"]
    assert (module.a, module.b) == ("foreign", 2)
    module.a = 10
    assert journal.changes == left
    journal.undo()
    assert module.a == 1


def test_forget_undoes_nothing() -> None:
    module = ModuleType("m")
    module.__dict__.update(a=1)
    journal = Journal()
    journal.set(module, "a", 10)
    journal.forget(lambda change: change.name == "a")
    journal.undo()
    assert module.a == 10
