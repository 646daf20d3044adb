"""``accel-bridge emulate-ascend``: runs a command where torch_npu finds emulated devices."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from accel_bridge.backends.ascend._emulation import ROOT_VARIABLE
from accel_bridge.backends.ascend.emulator._build import build
from accel_bridge.backends.ascend.emulator._torch_npu import TorchNpu, find_torch_npu
from accel_bridge.backends.ascend.limits import CHIPS, RELEASES, Rules, released
from accel_bridge.errors import BridgeError
from accel_bridge.process.endings import status_of
from accel_bridge.process.parser import Parser, parted

# The files of an emulated machine: device nodes that a probe finds, and room for HCCL.

#: CANN's home on it, with the directories that torch_npu looks for.
HOME: Final = "usr/local/Ascend/ascend-toolkit/latest"
#: CANN's Python packages in its home.
PYTHON: Final = "python/site-packages"
#: Of its package `acl`, what programs ask for: MindSpeed's memory planning reads how much is free.
_ACL: Final = """class rt:
    @staticmethod
    def get_mem_info(attribute):
        import torch

        return (*torch.npu.mem_get_info(), 0)
"""
#: The chip and CANN of a machine of which nothing is said: most users have a 910B.
DEFAULT: Final = ("910B", RELEASES[-1])
#: Memory shared between processes; a disk would work too, only slower.
_SHARED_MEMORY: Final = Path("/dev/shm")


@contextmanager
def machine(
    devices: int, parts: Mapping[str, Path] | None = None, rules: Rules | None = None
) -> Iterator[Path]:
    """A temporary directory that serves as the root of a machine with ``devices`` NPUs.

    :param parts: name in CANN's home, e.g. ``lib64`` -> the directory it shows.
    :param rules: of its chip and CANN.
    """
    base = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
    root = Path(tempfile.mkdtemp(prefix="accel_bridge-ascend-", dir=base))
    try:
        furnish(root, devices, parts or {}, rules or Rules(*DEFAULT))
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)


def furnish(root: Path, devices: int, parts: Mapping[str, Path], rules: Rules) -> None:
    """Put into ``root`` what :func:`machine` has."""
    directories = ("dev", "hccl", "usr/local/Ascend/driver")
    for made in (*directories, *(f"{HOME}/{part}" for part in ("runtime", "compiler", "opp"))):
        (root / made).mkdir(parents=True)
    for name, directory in parts.items():
        (root / HOME / name).symlink_to(directory, target_is_directory=True)
    acl = root / HOME / PYTHON / "acl"
    acl.mkdir(parents=True)
    (acl / "__init__.py").write_text(_ACL, encoding="utf-8")
    (root / "dev" / "davinci_manager").touch()
    for number in range(devices):
        (root / "dev" / f"davinci{number}").touch()
    (root / "usr/local/Ascend/driver/version.info").write_text("Version=EMULATED\n")
    (root / HOME / "compiler/version.info").write_text(f"Version={rules.cann} EMULATED\n")
    (root / "limits").write_text(rules.as_file(), encoding="utf-8")


#: HCCL's emulation was tested with this many ranks.
MOST_DEVICES: Final = 8
MEMORY_VARIABLE: Final = "ASCEND_EMULATOR_MEMORY"
#: What the libraries tell torch_npu of the chip and of CANN.
CHIP_VARIABLE: Final = "ASCEND_EMULATOR_CHIP"
CANN_VARIABLE: Final = "ASCEND_EMULATOR_CANN"
NUMERICS_VARIABLE: Final = "ASCEND_EMULATOR_NUMERICS"
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


class UsageError(BridgeError):
    """The command line makes no sense."""

    exit_code = 2


def parser() -> argparse.ArgumentParser:
    """The options before ``--``."""
    result = Parser(
        prog="accel-bridge emulate-ascend",
        usage="accel-bridge emulate-ascend [OPTIONS] -- COMMAND ...",
        description="Runs COMMAND with the real torch_npu on EMULATED Ascend NPUs: substitute CANN "
        "libraries that compute on this machine's processor. It shows whether code runs and "
        "computes the same; it shows nothing about a real NPU's speed or numerics. x86-64 Linux "
        "only; needs g++ once, to compile the libraries.",
        allow_abbrev=False,
    )
    result.add_argument("--devices", type=int, default=1, metavar="N", help="NPUs (1)")
    result.add_argument(
        "--memory", default="16g", metavar="SIZE", help="of each NPU, e.g. 512m or 16g (16g)"
    )
    result.add_argument(
        "--chip", type=str.upper, choices=CHIPS, default=DEFAULT[0], help=f"({DEFAULT[0]})"
    )
    result.add_argument(
        "--cann", default=DEFAULT[1], metavar="RELEASE", help=f"whose limits hold ({DEFAULT[1]})"
    )
    result.add_argument(
        "--numerics",
        default="plain",
        choices=("plain", "cube"),
        help="cube: GEMMs of half precisions as in blocks of 16 (plain)",
    )
    result.add_argument(
        "--install",
        action="store_true",
        help="let pip put torch_npu into the cache if it is missing; without COMMAND, only prepare",
    )
    return result


def main(argv: list[str]) -> int:
    """Run a command on emulated devices; its exit status is ours."""
    options, command = _parse(argv)
    torch_npu = find_torch_npu(install=options.install)
    libraries = build(torch_npu)
    if not command:
        print(f"emulate-ascend: ready (torch_npu {torch_npu.version} in {torch_npu.site})")
        return 0
    # Operators that a project compiles when it runs (MindSpeed) look for these in CANN's home.
    parts = {"lib64": libraries, "include": torch_npu.acl_include}
    with machine(options.devices, parts, Rules(options.chip, options.cann)) as root:
        memory = _bytes(options.memory)
        print(
            f"[EMULATED Ascend] {options.devices} device(s) of {options.memory}, {options.chip}, "
            f"CANN {options.cann}, torch_npu {torch_npu.version}: this shows nothing about a real "
            "NPU's speed or numerics",
            file=sys.stderr,
            flush=True,
        )
        if not _names_the_bridge(command, os.environ):
            print(
                "[EMULATED Ascend] accel_bridge is not active in this command; to activate it: "
                f"accel-bridge emulate-ascend ... -- accel-bridge run -- {shlex.join(command)}",
                file=sys.stderr,
                flush=True,
            )
        environ = environment(torch_npu, libraries, root, memory, os.environ)
        environ |= {CHIP_VARIABLE: CHIPS[options.chip], CANN_VARIABLE: options.cann}
        environ[NUMERICS_VARIABLE] = options.numerics
        return _run(command, environ)


def _names_the_bridge(command: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Whether the command, or a script in it, activates the bridge, as far as its text tells."""
    texts = [*command, environ.get("ACCEL_BRIDGE_AUTO", "") and "accel_bridge"]
    for word in command:
        with suppress(OSError, ValueError):
            texts.append(Path(word).read_text(encoding="utf-8"))
    return any(re.search("accel[-_]bridge", text) for text in texts)


def environment(
    torch_npu: TorchNpu, libraries: Path, root: Path, memory: int, environ: Mapping[str, str]
) -> dict[str, str]:
    """``environ`` with everything that torch_npu needs to find the emulated machine.

    :param memory: bytes of each device.
    """
    result = dict(environ)
    result[ROOT_VARIABLE] = str(root)
    # A real CANN's variables would lead torch_npu to the real libraries.
    result["ASCEND_HOME_PATH"] = result["ASCEND_TOOLKIT_HOME"] = str(root / HOME)
    result["ASCEND_OPP_PATH"] = str(root / HOME / "opp")
    result[MEMORY_VARIABLE] = str(memory)
    python = f"{torch_npu.site}{os.pathsep}{root / HOME / PYTHON}"
    for name, first in (("LD_LIBRARY_PATH", str(libraries)), ("PYTHONPATH", python)):
        result[name] = os.pathsep.join(filter(None, (first, environ.get(name))))
    # Ranks share the processors: threads that spin while they wait would hold the others up.
    result.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    return result


def _parse(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    before, command = parted(argv)
    options, rest = parser().parse_known_args(before)
    if rest:
        raise UsageError(
            f"{rest[0]!r} is not an option of emulate-ascend",
            evidence=" ".join(argv),
            next="put -- before the command: accel-bridge emulate-ascend -- python train.py",
        )
    if not command and not options.install:
        raise UsageError(
            "there is no command to run",
            evidence=" ".join(argv) or "(nothing)",
            next="accel-bridge emulate-ascend -- accel-bridge demo",
        )
    if not 1 <= options.devices <= MOST_DEVICES:
        raise UsageError(
            f"--devices must be 1 to {MOST_DEVICES}",
            evidence=f"--devices {options.devices}",
            next=f"--devices {min(max(options.devices, 1), MOST_DEVICES)}",
        )
    _bytes(options.memory)
    if released(options.cann) < released(RELEASES[0]):
        raise UsageError(
            f"--cann {options.cann!r} is no release that the table of limits knows",
            evidence=f"it begins with {RELEASES[0]}",
            next=f"--cann {DEFAULT[1]}",
        )
    return options, command


def _bytes(text: str) -> int:
    found = re.fullmatch(r"(\d+)([kmg]?)b?", text.strip().lower())
    if found is None or int(found[1]) == 0:
        raise UsageError(
            f"--memory {text!r} is not a size",
            evidence="it takes e.g. 512m or 16g",
            next="--memory 16g",
        )
    return int(found[1]) * _UNITS[found[2]]


def _run(command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run it as a child, so that the machine's directory can be removed after it."""
    try:
        _, status = status_of(command, environ=environ)
    except OSError as error:
        raise UsageError(
            f"{command[0]} cannot be started", evidence=str(error), next=f"which {command[0]}"
        ) from error
    return 128 - status if status < 0 else status
