"""A machine for checks of ``accel-bridge doctor``: files, programs and packages of a test's own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from accel_bridge.apps.doctor import STEPS
from accel_bridge.device.backend import Backend, Memory, Probe
from accel_bridge.plugins.checks import Check, Finding, Machine, ParsedArguments, Run, Verdict
from accel_bridge.plugins.manager import load_plugins

GIB = 2**30

#: A 64-bit machine on which nothing is wrong.
FILES = {
    "/proc/self/limits": """\
Limit                     Soft Limit           Hard Limit           Units
Max file size             unlimited            unlimited            bytes
Max processes             127000               127000               processes
Max open files            65536                65536                files
Max locked memory         unlimited            unlimited            bytes
Max address space         unlimited            unlimited            bytes
""",
    "/proc/self/status": "Name:\tpython\nCpus_allowed_list:\t0-15,32-47\n",
    "/proc/meminfo": "MemTotal: 263000000 kB\nMemAvailable: 250000000 kB\n",
    "/proc/mounts": "overlay / overlay rw 0 0\ntmpfs /dev/shm tmpfs rw,size=64g 0 0\n",
    "/proc/sys/vm/overcommit_memory": "0\n",
    "/proc/sys/kernel/hostname": "node1\n",
    "/proc/net/tcp": "  sl  local_address rem_address   st\n",
    "/sys/class/net/lo/mtu": "65536\n",
    "/sys/class/net/eth0/mtu": "1500\n",
    "/dev/shm/.keep": "",
    "/tmp/.keep": "",
    "/home/user/.keep": "",
}


@dataclass
class Injected:
    """A sound machine; a test breaks one thing of it."""

    directory: Path
    environ: dict[str, str] = field(default_factory=dict)
    addresses: dict[str, str] = field(
        default_factory=lambda: {"localhost": "127.0.0.1", "node1": "10.0.0.1"}
    )
    backend: str = "cpu"
    devices: int | None = None
    memory: tuple[Memory, ...] = ()
    run: Run | None = None
    disk: tuple[int, int] = (500 * GIB, 1000 * GIB)
    forbidden: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for directory in (self.root, self.programs, self.site):
            directory.mkdir(parents=True)
        for path, text in FILES.items():
            self.file(path, text)

    @property
    def root(self) -> Path:
        return self.directory / "root"

    @property
    def programs(self) -> Path:
        return self.directory / "bin"

    @property
    def site(self) -> Path:
        return self.directory / "site-packages"

    def file(self, path: str, text: str = "") -> Path:
        """Put a file below the root."""
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
        return place

    def program(self, name: str, source: str) -> None:
        """Put a shell script on the PATH."""
        path = self.programs / name
        path.write_text(f"#!/bin/sh\n{source}\n", encoding="utf-8")
        path.chmod(0o755)

    def package(
        self,
        name: str,
        version: str,
        files: Mapping[str, str] | None = None,
        requires: Iterable[str] = (),
        python: str = "",
        site: Path | None = None,
    ) -> None:
        """Install a distribution: modules and the metadata that pip writes."""
        site = site or self.site
        for path, text in (files or {}).items():
            (site / path).parent.mkdir(parents=True, exist_ok=True)
            (site / path).write_text(text, encoding="utf-8")
        directory = site / f"{name.replace('-', '_')}-{version}.dist-info"
        directory.mkdir(parents=True)
        lines = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}"]
        lines += [f"Requires-Dist: {one}" for one in requires]
        lines += [f"Requires-Python: {python}"] if python else []
        (directory / "METADATA").write_text("\n".join(lines) + "\n", encoding="utf-8")
        record = "".join(f"{path},,\n" for path in files or {})
        (directory / "RECORD").write_text(record, encoding="utf-8")

    def torch(self, version: str, cuda: str | None = None, source: str = "") -> None:
        """Install a torch that is a version file and ``source``."""
        text = f"__version__ = {version!r}\ncuda = {cuda!r}\n"
        self.package("torch", version, {"torch/__init__.py": source, "torch/version.py": text})

    def gpus(self, *rows: str, driver: str = "580.65", apps: str = "") -> None:
        """A nvidia-smi; each row is ``name, capability, total MiB, used MiB`` and more fields."""
        lines = []
        for index, row in enumerate(rows):
            name, capability, total, used, *rest = [word.strip() for word in row.split(",")]
            mode, mig, errors, slowdown = [*rest, *("Default", "Disabled", "0", "Not Active")][:4]
            lines.append(
                f"{index}, GPU-{index}, {name}, {driver}, {capability}, {total}, {used}, {mode}, "
                f"{mig}, {errors}, {slowdown}"
            )
        answer = "\n".join(lines)
        self.program(
            "nvidia-smi",
            f'case "$*" in *compute-apps*) echo "{apps}";; *fabric*) echo Completed;; '
            f"*) cat <<'END'\n{answer}\nEND\n;; esac",
        )

    def arguments(self, **arguments: Any) -> None:
        """A training with these arguments."""
        needed = arguments.pop("bytes_needed", None)
        run = self.run or Run()
        self.run = replace(run, parsed=ParsedArguments("a test", arguments, bytes_needed=needed))

    def machine(self) -> Machine:
        return Machine(
            root=self.root,
            environ={
                "PATH": f"{self.programs}{os.pathsep}/usr/bin{os.pathsep}/bin",
                "HOME": "/home/user",
                "PYTHONPATH": str(self.site),
                **self.environ,
            },
            path=(str(self.site),),
            disk=lambda path: self.disk,
            access=lambda path, mode: not str(path).endswith(self.forbidden or ("\0",)),
            resolve=lambda host: (self.addresses[host],) if host in self.addresses else (),
            backend=_backends()[self.backend],
            probe=Probe(True, "injected", ("injected",), self.devices),
            memory=self.memory,
            run=self.run,
        )

    def spoil(self, changes: Mapping[str, Any] | Callable[[Injected], None]) -> None:
        """Change variables (``RANK``), files (``/dev/x``; None removes one) and fields."""
        if callable(changes):
            changes(self)
            return
        for name, value in changes.items():
            if name.isupper():
                self.environ[name] = value
            elif name == "arguments":
                self.arguments(**value)
            elif not name.startswith("/"):
                setattr(self, name, value)
            elif value is None:
                (self.root / name.lstrip("/")).unlink()
            else:
                self.file(name, value)

    def find(self, name: str, verdict: Verdict, changes: Any, *texts: str) -> None:
        """Spoil something; the check finds it, and says ``texts``."""
        self.spoil(changes)
        self.finding(name, verdict, *texts)

    def findings(self, name: str) -> list[Finding]:
        """What the check of that name finds."""
        return list(checks()[name].run(self.machine()))

    def finding(self, name: str, verdict: Verdict, *texts: str) -> Finding:
        """The one thing that the check finds wrong, whose three parts hold ``texts``."""
        wrong = [one for one in self.findings(name) if one.verdict is not Verdict.OK]
        assert len(wrong) == 1, wrong
        [found] = wrong
        assert found.verdict is verdict, found
        assert found.evidence, found
        assert found.next, found
        whole = "\n".join((found.what, *found.evidence, found.next))
        for text in texts:
            assert text in whole, whole
        return found


@cache
def _backends() -> dict[str, Backend]:
    return {one.item.name: one.item for one in load_plugins().backends()}


@cache
def checks() -> dict[str, Check]:
    """Every check of the built-in plugins, by name."""
    found = load_plugins().checks()
    assert not found.failed, found.failed
    return {check.name: check for check in (*STEPS, *(one.item for one in found.items))}
