"""Checks of how ranks find one another: names, ports, interfaces."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

from accel_bridge.plugins.checks import Check, Finding, Machine, fails, ok, warning

_SUBJECT: Final = "Network"
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
    folder = machine.at("/sys/class/net")
    there = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
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


CHECKS: Final = (
    Check(
        "names",
        _SUBJECT,
        "localhost, this machine or the first machine without an address; several machines that "
        "would meet at localhost",
        _names,
    ),
    Check("ports", _SUBJECT, "the port at which ranks meet is taken, or for root alone", _ports),
    Check(
        "interfaces",
        _SUBJECT,
        "NCCL_, GLOO_, HCCL_ or TP_SOCKET_IFNAME naming an interface that is not there",
        _interfaces,
    ),
)
