"""What pyproject.toml cannot say: the packages, a file beside them, and the text on an index."""

from __future__ import annotations

import re
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


def readme() -> str:
    """README.md for a package index, where relative links and pictures lead nowhere."""
    text = Path("README.md").read_text(encoding="utf-8")
    text = re.sub(r"<!--.*?-->\n", "", text, flags=re.DOTALL)
    text = re.sub(r"<img [^>]*>\n*", "", text)
    # The line that leads to another language is a link and nothing else.
    text = re.sub(r"^\[[^]]*\]\((?!https?:)[^)]*\)\n\n", "", text, flags=re.MULTILINE)
    return re.sub(r"\[([^]]*)\]\((?!https?:)[^)]*\)", r"\1", text)


class BuildWithStart(build_py):
    """Puts what :data:`START` names into site-packages, of wheels and of editable installations."""

    def run(self) -> None:
        super().run()
        install = self.get_finalized_command("install")
        directory = install.install_lib if self.editable_mode else self.build_lib
        self.mkpath(directory)
        for file in START:
            self.copy_file(file, directory)


setup(
    cmdclass={"build_py": BuildWithStart},
    packages=packages(),
    long_description=readme(),
    long_description_content_type="text/markdown",
)
