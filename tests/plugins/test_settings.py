"""The table of environment variables."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel_bridge.errors import EnvironmentVariableError
from accel_bridge.process.environment import (
    Settings,
    Variable,
    one_of,
    unknown_variables,
)


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("ACCEL_BRIDGE_STRICT", "maybe", "true"),
        ("ACCEL_BRIDGE_LOG", "debugg", "did you mean 'debug'"),
        ("ACCEL_BRIDGE_PLUGINS", "a,-", "followed by a name"),
        ("ACCEL_BRIDGE_PLUGINS", "a,-a", "both asked for and excluded"),
        ("ACCEL_BRIDGE_PATCHES", "none,x", "cannot stand beside"),
        ("ACCEL_BRIDGE_PATCHES", "x,-x", "both asked for and excluded"),
        ("ACCEL_BRIDGE_LIBRARIES", "none,x", "cannot stand beside"),
    ],
)
def test_a_wrong_value_is_an_error_in_three_parts(name: str, value: str, hint: str) -> None:
    with pytest.raises(EnvironmentVariableError) as caught:
        Settings.from_environ({name: value})
    assert name in caught.value.what
    assert hint in caught.value.what
    assert caught.value.evidence
    assert f"unset {name}" in caught.value.next


_WORDS = st.text("abcxyz._", min_size=1, max_size=6).filter(
    lambda word: word not in ("all", "none")
)


@given(wanted=st.sets(_WORDS), unwanted=st.sets(_WORDS))
def test_patch_lists_survive_any_names(wanted: set[str], unwanted: set[str]) -> None:
    unwanted -= wanted
    value = ",".join([*wanted, *(f"-{name}" for name in unwanted)])
    choice = Settings.from_environ({"ACCEL_BRIDGE_PATCHES": value}).patches
    assert all(choice.excluded(name) is None for name in wanted)
    assert all(choice.excluded(name) is not None for name in unwanted)
    assert (choice.excluded("an id of its own") is None) == (not wanted)


def test_a_plugins_variable_is_known_and_is_suggested() -> None:
    toy = Variable("ACCEL_BRIDGE_TOY", "a", "a or b", "is for tests", one_of("a", "b"))
    assert unknown_variables([toy], {"ACCEL_BRIDGE_TOY": "a"}) == ()
    (line,) = unknown_variables([toy], {"ACCEL_BRIDGE_TOYS": "a"})
    assert "did you mean 'ACCEL_BRIDGE_TOY'?" in line
    assert [toy.read({}), toy.read({"ACCEL_BRIDGE_TOY": "B"})] == ["a", "b"]
    with pytest.raises(EnvironmentVariableError, match="it takes a, b"):
        toy.read({"ACCEL_BRIDGE_TOY": "c"})
