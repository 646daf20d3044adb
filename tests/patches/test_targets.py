"""The table of targets is that of the installed Megatron, and complete."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest

from accel_bridge.patches import plugin
from accel_bridge.patches._factory import TARGETS
from accel_bridge.patches._installed import megatron_version
from accel_bridge.patching import (
    Fit,
    Kind,
    Patch,
    Shape,
    SourceTree,
    against_tree,
    against_version,
    choose,
    known_versions,
)
from accel_bridge.patching.variants import is_version
from accel_bridge.plugins.manager import load_plugins


def test_every_module_with_patches_is_loaded() -> None:
    """One was not, and its patches were tested but never applied."""
    directory = Path(plugin.__file__).parent
    written = {
        path.stem
        for path in directory.glob("*.py")
        if re.search(r"^PATCHES\b.* = ", path.read_text("utf-8"), re.MULTILINE)
    }
    assert written == set(plugin._MODULES)


@pytest.fixture(scope="module")
def patches() -> list[Patch]:
    """The patches of Megatron as every backend gets them."""
    plugins = load_plugins()
    backend = plugins.backends()[0].item
    return [
        found.item
        for found in plugins.patches(backend).items
        if found.item.module.startswith("megatron.")
    ]


@pytest.fixture(scope="module")
def installed() -> SourceTree:
    spec = importlib.util.find_spec("megatron.core")
    assert spec is not None
    assert spec.origin is not None
    return SourceTree(Path(spec.origin).parents[2], {"megatron"})


def test_every_patch_has_an_entry_and_every_entry_a_patch(patches: list[Patch]) -> None:
    table = json.loads(TARGETS.read_text())
    assert set(table) == {patch.id for patch in patches}
    # A release that an entry leaves out is one that its patch was never compared with.
    releases = set(filter(is_version, chain.from_iterable(table.values())))
    missing = {id: releases - set(versions) for id, versions in table.items()}
    missing = {id: left for id, left in missing.items() if left}
    assert missing == {}, "python tools/targets.py VERSION=CHECKOUT adds them"
    for patch in patches:
        assert any(shape.place for shape in patch.expected.values()), patch.id


@pytest.mark.slow
def test_the_installed_version_is_as_the_table_says(
    patches: list[Patch], installed: SourceTree
) -> None:
    for patch in choose(patches, lambda _: megatron_version()).patches:
        expected = patch.expected[str(megatron_version())]
        found = installed.find(patch.target)
        assert bool(found) is bool(expected.place), patch.id
        assert found is None or installed.shape(found) == expected, patch.id


def test_every_known_version_is_served_or_needs_nothing(patches: list[Patch]) -> None:
    misfits = {
        (version, verdict.patch.id): verdict.fit
        for version in known_versions(patches)
        for verdict in against_version(patches, version)
        if verdict.fit not in (Fit.OK, Fit.NEEDLESS)
    }
    assert misfits == {}


@pytest.mark.slow
def test_all_fit_and_an_injected_change_is_seen(
    patches: list[Patch], installed: SourceTree
) -> None:
    verdicts = against_tree(patches, installed, lambda _: megatron_version())
    assert {v.patch.id for v in verdicts if v.fit not in (Fit.OK, Fit.NEEDLESS)} == set()
    injected = [
        dataclasses.replace(patch, expected={"0.19.2": Shape(("injected",), "x", "file:1")})
        for patch in patches
        if patch.kind is Kind.REPLACE
    ]
    seen = against_tree(injected, installed)
    # A target that is computed at import shows no parameters: its text is what has changed.
    assert {verdict.fit for verdict in seen} == {Fit.SIGNATURE, Fit.BODY}
    assert len(seen) == len(injected)


def test_records_are_made_without_torch_or_megatron() -> None:
    code = """
import sys
from accel_bridge.plugins.manager import load_plugins
plugins = load_plugins()
collected = plugins.patches(plugins.backends()[0].item)
assert not collected.failed, collected.failed
assert len(collected.items) > 20
assert not {"torch", "megatron.core"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("path", ["absent", "."])
def test_a_path_without_megatron_changes_no_table(path: str, tmp_path: Path) -> None:
    before = TARGETS.read_bytes()
    tool = Path(__file__).parents[2] / "tools" / "targets.py"
    done = subprocess.run(
        [sys.executable, str(tool), f"9.9={tmp_path / path}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "no source of megatron" in done.stderr
    assert TARGETS.read_bytes() == before
