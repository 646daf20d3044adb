"""Plugins for tests: source of small ones, and a directory that acts as site-packages."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

#: The fixture ``python``: runs this interpreter with arguments and environment variables.
Python = Callable[..., "subprocess.CompletedProcess[str]"]

GOOD_BACKEND = """
from accel_bridge.plugin import Backend, Probe, hookimpl


class {title}Backend(Backend):
    name = "{name}"
    title = "{title}"
    priority = {priority}

    def probe(self):
        {probe}

    def device(self):
        return None


@hookimpl
def accel_bridge_backends():
    return [{title}Backend()]
"""


def backend_source(
    name: str, *, priority: int = 5, probe: str = 'return Probe(True, "found")'
) -> str:
    """Source of a plugin module with one backend."""
    return GOOD_BACKEND.format(name=name, title=name.title(), priority=priority, probe=probe)


class Site:
    """A directory on the path with installed distributions."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def install(
        self,
        distribution: str,
        modules: Mapping[str, str],
        plugins: Mapping[str, str] | None = None,
        *,
        group: str = "accel_bridge",
    ) -> None:
        """Write modules and the metadata that pip would write.

        :param modules: module name to source.
        :param plugins: entry points: name to module.
        :param group: group of the entry points.
        """
        for module, source in modules.items():
            (self.directory / f"{module}.py").write_text(source)
        info = self.directory / f"{distribution.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n"
        )
        lines = [f"{name} = {module}" for name, module in (plugins or {}).items()]
        (info / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))
