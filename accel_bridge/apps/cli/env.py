"""``accel-bridge env``: versions and devices; works with a broken torch, torch_npu or CANN."""

from __future__ import annotations

import argparse
import os
import platform
import re
import sys
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from accel_bridge import __version__
from accel_bridge.apps._imports import SECONDS, try_imports
from accel_bridge.apps.cli import backends, libraries
from accel_bridge.apps.cli._output import (
    add_json_flag,
    only_stderr,
    print_heading,
    print_json,
    print_table,
)
from accel_bridge.bridge.selection import Selection
from accel_bridge.device.backend import Backend
from accel_bridge.errors import BridgeError, printable
from accel_bridge.libraries import Origin
from accel_bridge.process.environment import VARIABLES, Settings, Variable, unknown_variables
from accel_bridge.process.log import say
from accel_bridge.process.parser import Parser, seconds

#: Distributions whose versions decide what works.
PACKAGES: Final = (
    "torch",
    "triton",
    "megatron-core",
    "torch-npu",
    "mindspeed",
    "transformer-engine",
    "apex",
    "liger-kernel",
    "flash-attn",
    "numpy",
    "pluggy",
    "packaging",
    "rich",
    "matplotlib",
    "tokenizers",
    "tiktoken",
    "gigatoken",
    "sentencepiece",
    "orjson",
    "pyarrow",
    "zstandard",
    "ray",
)
#: What is imported when its distribution is installed. Not mindspeed: it parses sys.argv and
#: changes torch when it is imported.
IMPORTS: Final = {
    "torch": "torch",
    "torch-npu": "torch_npu",
    "transformer-engine": "transformer_engine",
    "megatron-core": "megatron.core",
}
#: Variables of other software that change what happens here.
_RELEVANT: Final = re.compile(
    r"(ASCEND|CANN|CUDA|GLOO|HCCL|LOCAL|MASTER|NCCL|NVIDIA|NVTE|OMP|PYTORCH|TASK_QUEUE|TORCH)_"
    r"|(CONDA_PREFIX|LD_LIBRARY_PATH|LD_PRELOAD|PYTHONPATH|RANK|VIRTUAL_ENV|WORLD_SIZE)$"
)
#: Values that must not end up in an issue.
_SECRET: Final = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|KEY")


@dataclass(frozen=True, slots=True)
class Setting:
    """One ``ACCEL_BRIDGE_*`` variable.

    :param value: what it holds, or None when it is not set.
    :param error: why that value means nothing, or None.
    """

    name: str
    value: str | None
    default: str
    values: str
    help: str
    error: str | None


@dataclass(frozen=True, slots=True)
class Report:
    """What ``env`` found.

    :param packages: version of each distribution in :data:`PACKAGES`; None: not installed.
    :param imports: ``ok`` or the error, by module.
    :param hardware: plugins, probes and selection, or the error that prevents them.
    :param libraries: real, shim or absent, or the error that prevents to say.
    :param environment: variables of other software, secrets left out.
    :param explained: what the selected backend says of them.
    """

    python: str
    executable: str
    platform: str
    processors: int | None
    packages: dict[str, str | None]
    imports: dict[str, str]
    hardware: backends.Survey | BridgeError
    libraries: libraries.Libraries | BridgeError
    settings: tuple[Setting, ...]
    unknown_settings: tuple[str, ...]
    environment: dict[str, str]
    explained: dict[str, str]

    def as_json(self) -> dict[str, object]:
        """The report as a JSON document."""
        return {
            "accel_bridge": __version__,
            "python": self.python,
            "executable": self.executable,
            "platform": self.platform,
            "processors": self.processors,
            "packages": self.packages,
            "imports": self.imports,
            "hardware": self._hardware_as_json(),
            "libraries": libraries.report(self.libraries),
            "settings": {setting.name: asdict(setting) for setting in self.settings},
            "unknown_settings": list(self.unknown_settings),
            "environment": self.environment,
            "environment_explained": self.explained,
        }

    def _hardware_as_json(self) -> dict[str, object]:
        if isinstance(self.hardware, BridgeError):
            return {"error": str(self.hardware)}
        selected = self.hardware.selected
        return {
            **backends.report(self.hardware),
            "error": str(selected) if isinstance(selected, BridgeError) else None,
            "versions": {
                probed.backend.name: _versions(probed.backend) for probed in self.hardware.probes
            },
        }


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="accel-bridge env",
        description="Prints versions, devices and variables. Libraries are imported in child "
        "processes only, so a broken torch, torch_npu or CANN is shown, not met.",
    )
    parser.add_argument(
        "--no-imports", action="store_true", help="do not try to import torch and others (quick)"
    )
    parser.add_argument(
        "--wait",
        metavar="SECONDS",
        type=seconds,
        default=SECONDS,
        help="that all imports together may take (default: %(default)g)",
    )
    add_json_flag(parser)
    return parser


def main(argv: Sequence[str]) -> int:
    """Print what this machine has."""
    arguments = _parser().parse_args(argv)
    with only_stderr():
        report = look(with_imports=not arguments.no_imports, seconds=arguments.wait)
    if arguments.json:
        print_json(report.as_json)
    else:
        _print(report)
    return 0


def look(
    environ: Mapping[str, str] = os.environ,
    *,
    with_imports: bool = True,
    seconds: float = SECONDS,
) -> Report:
    """Look at everything; raises nothing for what is broken.

    :param seconds: that all imports together may take.
    """
    packages = installed_versions()
    settings = _settings(environ)
    hardware = _survey(settings)
    declared = () if isinstance(hardware, BridgeError) else hardware.plugins.variables()
    explained = _explained(hardware, environ)
    found = _libraries(settings, hardware)
    imports = _replaced(found) if with_imports else {}
    modules = [IMPORTS[name] for name in IMPORTS if packages[name]] if with_imports else []
    modules = [module for module in modules if module not in imports]
    tried = try_imports(modules, seconds, say)
    return Report(
        python=f"{platform.python_implementation()} {platform.python_version()}",
        executable=sys.executable,
        platform=platform.platform(),
        processors=os.cpu_count(),
        packages=packages,
        imports={result.module: result.detail or "ok" for result in tried} | imports,
        hardware=hardware,
        libraries=found,
        settings=tuple(_setting(variable, environ) for variable in (*VARIABLES, *declared)),
        unknown_settings=unknown_variables(declared, environ),
        environment=relevant_variables(environ, explained),
        explained=explained,
    )


def installed_versions() -> dict[str, str | None]:
    """Version of each distribution in :data:`PACKAGES` by its metadata; None: not installed."""
    found: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
        except Exception as error:  # its metadata is missing or damaged
            found[name] = f"unknown ({type(error).__name__} in its metadata)"
    return found


def relevant_variables(environ: Mapping[str, str], also: Container[str] = ()) -> dict[str, str]:
    """Variables of other software that matter here; secrets are shown as ``<set>``."""
    return {
        name: "<set>" if _SECRET.search(name) else environ[name]
        for name in sorted(environ)
        if _RELEVANT.match(name) or name in also
    }


def _settings(environ: Mapping[str, str]) -> Settings:
    """A wrong ``ACCEL_BRIDGE_*`` value is shown in the table of settings; the defaults go on."""
    try:
        return Settings.from_environ(environ)
    except BridgeError:
        return Settings()


def _survey(settings: Settings) -> backends.Survey | BridgeError:
    """What ``accel-bridge backends`` finds."""
    try:
        return backends.survey(settings)
    except BridgeError as error:
        return error


def _libraries(
    settings: Settings, hardware: backends.Survey | BridgeError
) -> libraries.Libraries | BridgeError:
    """What ``accel-bridge libraries`` finds."""
    if isinstance(hardware, BridgeError):
        return hardware
    if isinstance(hardware.selected, BridgeError):
        return hardware.selected
    try:
        return libraries.look(settings, hardware.plugins, hardware.selected)
    except BridgeError as error:
        return error


def _replaced(found: libraries.Libraries | BridgeError) -> dict[str, str]:
    """Installed modules that no program here imports as they are -> what it gets."""
    if isinstance(found, BridgeError):
        return {}
    return {
        one.library.name: f"{one.origin.value} by accel_bridge"
        for one in found.resolutions
        if one.origin is Origin.COMPLETED
    }


def _setting(variable: Variable[Any], environ: Mapping[str, str]) -> Setting:
    error = None
    try:
        variable.read(environ)
    except BridgeError as problem:
        error = problem.what
    return Setting(
        variable.name,
        environ.get(variable.name),
        variable.default,
        variable.values,
        variable.help,
        error,
    )


def _versions(backend: Backend) -> dict[str, str]:
    """The backend's versions; a third party's backend may break its promise not to raise."""
    try:
        return {str(name): str(value) for name, value in backend.versions().items()}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _explained(
    hardware: backends.Survey | BridgeError, environ: Mapping[str, str]
) -> dict[str, str]:
    """What the selected backend says of its software's variables."""
    if isinstance(hardware, BridgeError) or isinstance(hardware.selected, BridgeError):
        return {}
    try:
        facts = hardware.selected.chosen.explain(environ)
        return {str(name): str(value) for name, value in facts.items()}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _print(report: Report) -> None:
    rows = [
        ["accel_bridge", __version__],
        ["python", f"{report.python}  {report.executable}"],
        ["platform", f"{report.platform}, {report.processors} processors"],
    ]
    print_table(["", ""], rows)
    print_heading("Packages")
    print_table(
        ["package", "version", "import"],
        [
            [name, found or "not installed", report.imports.get(IMPORTS.get(name, ""), "")]
            for name, found in report.packages.items()
        ],
    )
    print_heading("Hardware")
    _print_hardware(report.hardware)
    print_heading("Libraries")
    if isinstance(report.libraries, BridgeError):
        print(report.libraries)
    else:
        libraries.print_libraries(report.libraries)
    print_heading("Settings")
    print_table(
        ["variable", "value", "default", "takes", "what it does"],
        [
            [
                setting.name,
                "(not set)" if setting.value is None else setting.value,
                setting.default,
                setting.values,
                f"WRONG: {setting.error}" if setting.error else setting.help,
            ]
            for setting in report.settings
        ],
    )
    for line in report.unknown_settings:
        print(printable(f"warning: {line}"))
    print_heading("Environment")
    print_table(
        ["variable", "value", ""],
        [
            [name, value, report.explained.get(name, "")]
            for name, value in report.environment.items()
        ],
    )


def _print_hardware(hardware: backends.Survey | BridgeError) -> None:
    if isinstance(hardware, BridgeError):
        print(hardware)
        return
    backends.print_probes(hardware.probes)
    for probed in hardware.probes:
        for name, found in _versions(probed.backend).items():
            print(printable(f"{probed.backend.name} {name}: {found}"))
    for failed in hardware.plugins.failed:
        print(printable(str(failed)))
    selected = hardware.selected
    why = selected.why if isinstance(selected, Selection) else str(selected)
    print(f"\nchosen: {printable(why, keep=chr(10))}")
