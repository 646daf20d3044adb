"""What pyproject.toml cannot say: the packages, and one file that belongs beside them."""

from __future__ import annotations

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

#: Import names of the directories that `package-dir` in pyproject.toml maps.
ROOTS = {
    "accel_bridge": "accel_bridge",
    "backends": "accel_bridge.backends",
    "patches": "accel_bridge.patches",
    "pretrain": "accel_bridge.pretrain",
}

#: Python runs the first at every start, and that imports the second.
START = tuple(
    f"accel_bridge/process/bootstrap/{name}"
    for name in ("accel_bridge_auto.pth", "accel_bridge_start.py")
)


def packages() -> list[str]:
    """Import names of all directories with an ``__init__.py``; some parents have none."""
    return sorted(
        ".".join([name, *file.parent.relative_to(root).parts])
        for root, name in ROOTS.items()
        for file in Path(root).rglob("__init__.py")
    )


class BuildWithStart(build_py):
    """Puts what :data:`START` names into site-packages, of wheels and of editable installations."""

    def run(self) -> None:
        super().run()
        install = self.get_finalized_command("install")
        folder = install.install_lib if self.editable_mode else self.build_lib
        self.mkpath(folder)
        for file in START:
            self.copy_file(file, folder)


setup(cmdclass={"build_py": BuildWithStart}, packages=packages())
