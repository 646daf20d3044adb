"""Write patches/targets.json: what the target of every patch looks like in versions of Megatron.

    python tools/targets.py 0.19.2=megatron_core-0.19.2-cp312-....whl main=PATH/TO/Megatron-LM

Each word is a name for the version and a checkout, a site-packages directory or a wheel. Versions
that are not named keep their entries; patches that no longer exist lose theirs. None of the sources
is imported. A wheel before 0.17 has no ``megatron.training``: give a checkout of its tag.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import json_lines
from packaging.version import InvalidVersion, Version

from accel_bridge.patches._factory import TARGETS
from accel_bridge.patching import Patch, Shape
from accel_bridge.patching.source import NoSuchTree, SourceTree
from accel_bridge.patching.variants import is_version, unmet_requirement
from accel_bridge.plugins.manager import load_plugins


def main(words: list[str]) -> int:
    """Resolve every target in every tree that is named; the exit status."""
    if not words or not all("=" in word for word in words):
        print(__doc__, file=sys.stderr)
        return 2
    plugins = load_plugins()
    collected = plugins.patches(plugins.backends()[0].item)
    if collected.failed:  # its patches would lose their entries
        print(*collected.failed, sep="\n", file=sys.stderr)
        return 1
    found = [one.item for one in collected.items]
    patches = [patch for patch in found if patch.module.startswith("megatron.")]
    table: dict[str, dict[str, Mapping[str, object]]] = {patch.id: {} for patch in patches}
    for id, versions in json.loads(TARGETS.read_text(encoding="utf-8")).items():
        table.get(id, {}).update(versions)
    for version, _, path in (word.partition("=") for word in words):
        try:
            tree = SourceTree(Path(path), {"megatron"})
        except NoSuchTree as error:
            print(error, file=sys.stderr)
            return 1
        if not tree.holds("megatron") or tree.lacks_portion("megatron.training.training"):
            print(f"{path} has no megatron.training; nothing was written", file=sys.stderr)
            return 1
        for id in table:
            variants = [patch for patch in patches if patch.id == id]
            table[id][version] = resolve(variant_for(version, variants), tree).as_json()
    rows = {id: {name: table[id][name] for name in ordered(table[id])} for id in table}
    TARGETS.write_text(json_lines.dumps(rows, 2) + "\n", encoding="utf-8")
    return 0


def variant_for(version: str, variants: Sequence[Patch]) -> Patch:
    """The variant that is for a version, else any; a branch is later than every release."""
    number = version if is_version(version) else "9999"
    suited = [one for one in variants if unmet_requirement(one, lambda _: number) is None]
    return (suited or list(variants))[0]


def resolve(patch: Patch, tree: SourceTree) -> Shape:
    """What the patch's target looks like in a tree, or what the tree has in its place."""
    found = tree.find(patch.target)
    if found is None:
        return Shape(None, None, elsewhere=tuple(tree.elsewhere(patch.target))[:3])
    return tree.shape(found)


def ordered(versions: Iterable[str]) -> list[str]:
    """Numbers first, in their order, then names such as ``main``."""

    def key(name: str) -> tuple[bool, Version, str]:
        try:
            return False, Version(name), ""
        except InvalidVersion:
            return True, Version("0"), name

    return sorted(versions, key=key)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
