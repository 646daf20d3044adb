"""Everything is in pyproject.toml, but for one file that belongs beside the package."""

from __future__ import annotations

from setuptools import setup
from setuptools.command.build_py import build_py

#: Python runs it at every start; it does nothing without ACCEL_BRIDGE_AUTO.
START = "accel_bridge/bootstrap/accel_bridge_auto.pth"


class BuildWithStart(build_py):
    """Puts :data:`START` into site-packages, of wheels and of editable installations."""

    def run(self) -> None:
        super().run()
        install = self.get_finalized_command("install")
        folder = install.install_lib if self.editable_mode else self.build_lib
        self.mkpath(folder)
        self.copy_file(START, folder)


setup(cmdclass={"build_py": BuildWithStart})
