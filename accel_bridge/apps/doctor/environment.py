"""Checks of environment variables, and of how ranks find one another: names, ports, interfaces."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from accel_bridge.device.backend import environment_of
from accel_bridge.errors import BridgeError, EnvironmentVariableError
from accel_bridge.plugins.checks import Check, Finding, Machine, fails, of_error, ok, warning
from accel_bridge.plugins.manager import load_plugins
from accel_bridge.process.environment import VARIABLES, unknown_variables
from accel_bridge.process.ranks import OTHER_LAUNCHERS, check_variables

_SUBJECT: Final = "Environment"
#: What ``torch.distributed`` reads, all or none.
_RENDEZVOUS: Final = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def _variables(machine: Machine) -> Iterator[Finding]:
    declared = load_plugins().variables()
    for line in unknown_variables(declared, machine.environ):
        name = line.partition(" ")[0]
        yield warning(
            line, f"{name}={machine.environ[name]}", next=f"unset {name}   (accel-bridge env)"
        )
    for variable in (*VARIABLES, *declared):
        try:
            variable.read(machine.environ)
        except EnvironmentVariableError as error:
            yield of_error(error)


def _launcher(machine: Machine) -> Iterator[Finding]:
    environ = machine.environ
    try:
        check_variables(environ)
    except BridgeError as error:
        yield of_error(error)
        return
    given = [name for name in _RENDEZVOUS if name in environ]
    by_others = any(name in environ for name in OTHER_LAUNCHERS)
    if given and len(given) < len(_RENDEZVOUS) and not by_others:
        missing = [name for name in _RENDEZVOUS if name not in given]
        # torchrun sets all four by itself, so this is about a script started without it.
        says = warning if machine.run is not None and machine.run.processes > 1 else fails
        yield says(
            "some of a launcher's variables are set and others are not: a script started without "
            "torchrun stops at the first that it misses",
            f"set: {', '.join(f'{name}={environ[name]}' for name in given)}; "
            f"not set: {', '.join(missing)}",
            next=f"unset {' '.join(given)}, or start the ranks with torchrun",
        )
        return
    by_hand = len(given) == len(_RENDEZVOUS) and "TORCHELASTIC_RUN_ID" not in environ
    if by_hand and not by_others and int(environ["WORLD_SIZE"]) > 1:
        yield warning(
            f"this shell says that it is rank {environ['RANK']} of {environ['WORLD_SIZE']}: a "
            "script started alone waits for the others",
            ", ".join(f"{name}={environ[name]}" for name in given),
            next=f"unset {' '.join(given)}, unless each rank is started by hand",
        )


@dataclass(frozen=True, slots=True)
class Hindrance:
    """A variable of other software that slows a training down or changes it.

    :param when: whether a value does so.
    :param what: what it does then.
    :param accelerated: it matters on devices only, not on a CPU.
    """

    name: str
    when: Callable[[str], bool]
    what: str
    accelerated: bool = True


def _on(value: str) -> bool:
    return value.strip().lower() not in ("", "0", "false", "off", "no")


#: Sources: PyTorch's and CUDA's lists of environment variables; Python's command line.
HINDRANCES: Final = (
    Hindrance("CUDA_LAUNCH_BLOCKING", _on, "each kernel is waited for: several times slower"),
    Hindrance("ASCEND_LAUNCH_BLOCKING", _on, "each kernel is waited for: several times slower"),
    Hindrance(
        "PYTORCH_NO_CUDA_MEMORY_CACHING", _on, "each tensor asks the driver for memory: far slower"
    ),
    Hindrance(
        "PYTORCH_NO_NPU_MEMORY_CACHING", _on, "each tensor asks the driver for memory: far slower"
    ),
    Hindrance("TORCHDYNAMO_DISABLE", _on, "nothing is compiled: fusions run one by one"),
    Hindrance("TORCH_COMPILE_DISABLE", _on, "nothing is compiled: fusions run one by one"),
    Hindrance(
        "TORCH_DISTRIBUTED_DEBUG",
        lambda value: value.strip().upper() == "DETAIL",
        "every collective is checked against those of the other ranks: far slower",
        accelerated=False,
    ),
    Hindrance(
        "PYTHONOPTIMIZE",
        _on,
        "Python leaves out assertions, with which Megatron checks its arguments",
        accelerated=False,
    ),
    Hindrance("NCCL_P2P_DISABLE", _on, "GPUs exchange tensors through host memory, not NVLink"),
    Hindrance("NCCL_SHM_DISABLE", _on, "ranks of a machine exchange tensors through the network"),
    Hindrance("NCCL_IB_DISABLE", _on, "machines exchange tensors through TCP, not InfiniBand"),
    Hindrance(
        "NVTE_DEBUG", _on, "Transformer Engine logs each call; results are as usual, speed is not"
    ),
)


def _hindrances(machine: Machine) -> Iterator[Finding]:
    accelerated = machine.backend is not None and machine.backend.priority > 0
    for one in HINDRANCES:
        value = machine.environ.get(one.name)
        if value is not None and one.when(value) and (accelerated or not one.accelerated):
            yield warning(
                f"{one.name} is set: {one.what}",
                f"{one.name}={value}",
                next=f"unset {one.name}",
            )
    # With a training the framework itself checks what its layout wants.
    wanted = environment_of(machine.backend) if machine.backend and not machine.run else {}
    for name, value in wanted.items():
        if machine.backend and machine.environ.get(name, value) != value:
            yield warning(
                f"{name} has another value than this device wants, and the bridge leaves it so",
                f"{name}={machine.environ[name]}; the {machine.backend.name} backend sets {value}",
                next=f"unset {name}",
            )


def _torchrun(machine: Machine) -> Iterator[Finding]:
    """The ranks run in the Python that torchrun's first line names."""
    program = machine.program("torchrun")
    if machine.run is None or machine.run.script is None or program is None:
        return
    with open(program, "rb") as file:
        first = file.readline(4096).decode(errors="replace").strip()
    interpreter = first.removeprefix("#!").strip()
    bin_directory = Path(sys.executable).parent
    if (
        first.startswith("#!/")
        and "env " not in first
        and Path(interpreter).parent != bin_directory
    ):
        yield warning(
            "torchrun is another Python's than accel-bridge: the ranks would see other packages",
            f"{program} starts {interpreter}; this is {sys.executable}",
            next=f"{sys.executable} -m torch.distributed.run in place of torchrun, or activate "
            "one environment",
        )


CHECKS: Final = (
    Check(
        "variables",
        _SUBJECT,
        "ACCEL_BRIDGE_* variables that nobody knows, or whose values mean nothing",
        _variables,
    ),
    Check(
        "launcher",
        _SUBJECT,
        "RANK, WORLD_SIZE and their likes: no numbers, some of them missing, or left in a shell",
        _launcher,
    ),
    Check(
        "hindrances",
        _SUBJECT,
        "variables that slow a training down or work against the bridge "
        f"({', '.join(one.name for one in HINDRANCES[:2])}, ...)",
        _hindrances,
    ),
    Check(
        "torchrun", _SUBJECT, "a torchrun of another Python on the PATH", _torchrun, with_run=True
    ),
)


_NETWORK: Final = "Network"
#: Variables that name network interfaces, and whether a part of a name is enough.
_INTERFACES: Final = {
    "NCCL_SOCKET_IFNAME": True,
    "HCCL_SOCKET_IFNAME": True,
    "GLOO_SOCKET_IFNAME": False,
    "TP_SOCKET_IFNAME": False,
}


def _names(machine: Machine) -> Iterator[Finding]:
    several = machine.run is not None and machine.run.machines > 1
    several = several and "GLOO_SOCKET_IFNAME" not in machine.environ
    if not machine.resolve("localhost"):
        yield fails(
            "the name localhost has no address, under which torchrun's ranks meet",
            "no address of localhost",
            next="echo '127.0.0.1 localhost' | sudo tee -a /etc/hosts",
        )
    name = machine.text("/proc/sys/kernel/hostname").strip()
    if name and not machine.resolve(name) and "GLOO_SOCKET_IFNAME" not in machine.environ:
        says = fails if several else warning
        yield says(
            f"this machine's name {name!r} has no address: gloo takes the loopback, which other "
            "machines cannot reach",
            f"no address of {name}",
            next=f"echo \"$(hostname -I | cut -d' ' -f1) {name}\" | sudo tee -a /etc/hosts, or "
            "export GLOO_SOCKET_IFNAME=INTERFACE (ip -br addr)",
        )
    addresses = machine.resolve(name) if name and several else ()
    if addresses and all(one.startswith("127.") or one == "::1" for one in addresses):
        yield fails(
            f"this machine's name {name!r} is an address of the loopback, at which other machines "
            "would look for this one in vain",
            f"{name}: {', '.join(addresses)}",
            next=f"give {name} its real address in /etc/hosts, or export "
            "GLOO_SOCKET_IFNAME=INTERFACE (ip -br addr)",
        )
    run = machine.run
    if run is not None and run.host and not machine.resolve(run.host):
        yield fails(
            f"the first machine {run.host!r} has no address",
            f"no address of {run.host}",
            next="give --master-addr (or --rdzv-endpoint, MASTER_ADDR) an address that `getent "
            "hosts` knows on every machine",
        )
    if run is not None and run.machines > 1 and (run.host or "localhost") == "localhost":
        yield fails(
            f"{run.machines} machines would each wait for the others at their own localhost",
            f"--nnodes {run.machines}, first machine: {run.host or 'not given'}",
            next="--master-addr ADDRESS --master-port PORT --node-rank N, or --rdzv-endpoint "
            "ADDRESS:PORT, the same on every machine",
        )


def _ports(machine: Machine) -> Iterator[Finding]:
    run = machine.run
    port = run.port if run is not None else None
    if port is None:
        text = machine.environ.get("MASTER_PORT", "")
        port = int(text) if text.isdigit() else None
    elsewhere = run is not None and run.machines > 1 and machine.environ.get("NODE_RANK") != "0"
    if not port or elsewhere:
        return
    if port in machine.listening():
        yield fails(
            f"port {port}, at which the ranks would meet, is taken",
            f"/proc/net/tcp: a process listens on {port}",
            next=f"end it (ss -ltnp 'sport = :{port}'), or give --master-port another number",
        )
    least = machine.text("/proc/sys/net/ipv4/ip_unprivileged_port_start").strip() or "1024"
    if port < int(least) and os.geteuid() != 0:
        yield fails(
            f"port {port} is for root alone",
            f"ports below {least} are; this is user {os.getuid()}",
            next="--master-port 29500",
        )


def _interfaces(machine: Machine) -> Iterator[Finding]:
    directory = machine.at("/sys/class/net")
    there = sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []
    for variable, partial in _INTERFACES.items():
        value = machine.environ.get(variable, "").strip()
        if not value or not there or value.startswith("^"):
            continue
        exact = not partial or value.startswith("=")
        wanted = [word.strip().partition(":")[0] for word in value.lstrip("=").split(",")]
        missing = [
            word
            for word in wanted
            if not any(name == word if exact else name.startswith(word) for name in there)
        ]
        if len(missing) == len(wanted) or (missing and not partial):
            yield fails(
                f"{variable} names an interface that is not there: {', '.join(missing)}",
                f"{variable}={value}; interfaces: {', '.join(there)}",
                next=f"export {variable}=ONE OF THEM, or unset {variable}",
            )
    if there == ["lo"]:
        several = machine.run is not None and machine.run.machines > 1
        if several:
            yield fails(
                "there is no network but the loopback, and several machines would train",
                "interfaces: lo",
                next="start the container with --network host",
            )
        else:
            yield ok("there is no network but the loopback")


NETWORK_CHECKS: Final = (
    Check(
        "names",
        _NETWORK,
        "localhost, this machine or the first machine without an address; several machines that "
        "would meet at localhost",
        _names,
    ),
    Check("ports", _NETWORK, "the port at which ranks meet is taken, or for root alone", _ports),
    Check(
        "interfaces",
        _NETWORK,
        "NCCL_, GLOO_, HCCL_ or TP_SOCKET_IFNAME naming an interface that is not there",
        _interfaces,
    ),
)
