"""Where ranks meet (``MASTER_ADDR:MASTER_PORT``): what cannot work is refused, what waits is named.

PyTorch tries an address that does not resolve, and waits for a rank that never comes, for up to
half an hour, in silence.
"""

from __future__ import annotations

import errno
import functools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from importlib import import_module
from typing import Any, Final

from accel_bridge.errors import BridgeError
from accel_bridge.process.import_hook import now_or_when_imported
from accel_bridge.process.log import PREFIX, tell

#: Seconds that an address gets to resolve: names of containers come a moment after them.
RESOLVES: Final = 10.0
#: Seconds after which a rank says that nobody answers where it is to meet the others.
ANSWERS = 10.0
#: Seconds after which rank 0 says who has not come.
COMES = 60.0
_SHOWN: Final = 10
_STATIC: Final = "torch.distributed.elastic.rendezvous.static_tcp_rendezvous"
_DYNAMIC: Final = "torch.distributed.elastic.rendezvous.c10d_rendezvous_backend"
_meetings = 0


class MeetingError(BridgeError):
    """The ranks cannot meet at the address or port that they were given."""

    exit_code = 1


def check_environment() -> None:
    """Check the address that a launcher gave this rank, before anything long begins.

    Its port is left for later: a program that a rank starts has the same variables.

    :raises MeetingError: no rank can meet there.
    """
    host = os.environ.get("MASTER_ADDR")
    if host and os.environ.get("WORLD_SIZE", "1") != "1":
        check(host, 0, hosts=False)


def check(host: str, port: int, *, hosts: bool, name: str = "MASTER_ADDR") -> None:
    """A meeting place must have an address; where this process is to listen, a free port.

    :param hosts: this process listens there.
    :param name: what gave the host, for the message.
    :raises MeetingError: it does not.
    """
    _resolve(host, name)
    if hosts and port and (found := _taken(port)):
        raise MeetingError(
            f"The port {port}, at which the ranks are to meet, is in use.",
            evidence=(found, f"process 0 listens at {host}:{port}"),
            next=f"end that process, or choose another port (--master-port or MASTER_PORT, the "
            f"same for all ranks); `ss -ltnp 'sport = :{port}'` shows who listens",
        )


def place() -> None:
    """Let every meeting of this process's ranks, or of torchrun's nodes, be checked and watched."""
    import torch.distributed

    if not torch.distributed.is_available():
        return
    rendezvous: Any = import_module("torch.distributed.rendezvous")  # a function hides it
    original = rendezvous._create_c10d_store
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def create(
        hostname: str, port: int, rank: int, world_size: int, *rest: Any, **more: Any
    ) -> Any:
        agent = _agent_hosts()
        if world_size > 1:
            check(hostname, port, hosts=rank == 0 and not agent)
        # torchrun itself watches the ranks of one machine.
        if world_size == 1 or (agent and os.environ.get("LOCAL_WORLD_SIZE") == str(world_size)):
            return original(hostname, port, rank, world_size, *rest, **more)
        with _watched("rank", hostname, port, rank, world_size):
            return original(hostname, port, rank, world_size, *rest, **more)

    rendezvous._create_c10d_store = create
    wrappers: dict[str, Callable[[Any], None]] = {_STATIC: _wrap_static, _DYNAMIC: _wrap_dynamic}
    now_or_when_imported(wrappers, lambda name, module: wrappers[name](module)).install()


def _wrap_static(module: Any) -> None:
    """torchrun's nodes, with ``--master-addr`` and ``--master-port``."""
    original = module.StaticTCPRendezvous.next_rendezvous

    @functools.wraps(original)
    def next_rendezvous(self: Any) -> Any:
        if self._store is not None:  # a restart
            return original(self)
        own = self.rank == 0
        if self.world_size > 1 or own:
            check(self.master_addr, self.master_port, hosts=own, name="--master-addr")
        if self.world_size == 1:
            return original(self)
        with _watched("node", self.master_addr, self.master_port, self.rank, self.world_size):
            return original(self)

    module.StaticTCPRendezvous.next_rendezvous = next_rendezvous


def _wrap_dynamic(module: Any) -> None:
    """torchrun's nodes, with ``--rdzv-backend c10d --rdzv-endpoint``."""
    original = module._create_tcp_store

    @functools.wraps(original)
    def create(params: Any) -> Any:
        host, port = module.parse_rendezvous_endpoint(params.endpoint, default_port=0)
        check(host, port, hosts=False, name="--rdzv-endpoint")
        return original(params)

    module._create_tcp_store = create


def _agent_hosts() -> bool:
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _resolve(host: str, name: str) -> None:
    said = [f"no answer from the resolver in {RESOLVES:g} s"]
    done = threading.Event()

    def look() -> None:
        # A resolver may take minutes by itself, so that is a thread's to wait for.
        while not done.is_set():
            try:
                socket.getaddrinfo(host, None)
            except (OSError, UnicodeError) as error:
                said[0] = f"{type(error).__name__}: {error}"
                done.wait(1.0)
            else:
                said.clear()
                done.set()

    threading.Thread(target=look, name="accel_bridge resolver", daemon=True).start()
    found = done.wait(RESOLVES)
    done.set()
    if not found:
        raise MeetingError(
            f"{name}={host!r} is no address: the ranks cannot meet there.",
            evidence=said,
            next=f"set {name} to a name or an address of the machine of rank 0 that this machine "
            f"knows (`getent hosts {host}` must print it)",
        )


def _taken(port: int) -> str:
    """Why nobody can listen at a port of this machine; nothing where it is free."""
    for family, any_address in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as tried:
                tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                tried.bind((any_address, port))
        except OSError as error:
            if family == socket.AF_INET6 and error.errno != errno.EADDRINUSE:  # no IPv6 here
                continue
            return str(error)
    return ""


@contextmanager
def _watched(what: str, host: str, port: int, rank: int, count: int) -> Iterator[None]:
    """Say, from a thread, whom this rank or node waits for meanwhile."""
    global _meetings
    _meetings += 1
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    key = f"accel_bridge/{what}/{restart}/{_meetings}/"
    done = threading.Event()

    def watch() -> None:
        with suppress(Exception):  # a watcher must disturb nobody
            if _wait_for_answer(what, host, port, rank, done):
                _come(what, host, port, rank, count, key, done)

    threading.Thread(target=watch, name="accel_bridge meeting", daemon=True).start()
    try:
        yield
    finally:
        done.set()


def _wait_for_answer(what: str, host: str, port: int, rank: int, done: threading.Event) -> bool:
    began, said = time.monotonic(), False
    while not done.is_set():
        try:
            socket.create_connection((host, port), timeout=5).close()
        except OSError as error:
            if not said and time.monotonic() - began > ANSWERS:
                said = True
                _say(
                    f"{what} {rank}: nobody answers at {host}:{port} ({error}). It waits: process "
                    "0 may start later; else check that address, the port and the firewall there"
                )
            done.wait(1.0)
        else:
            return True
    return False


def _come(
    what: str, host: str, port: int, rank: int, count: int, key: str, done: threading.Event
) -> None:
    """Note that this one has come; the first says who has not."""
    from torch._C._distributed_c10d import TCPStore

    store = TCPStore(
        host, port, is_master=False, timeout=timedelta(seconds=30), wait_for_workers=False
    )
    store.set(f"{key}{rank}", "here")
    if rank != 0:
        return
    began, said = time.monotonic(), list[int]()
    missing = list(range(1, count))
    while not done.wait(min(1.0, COMES)):
        missing = [one for one in missing if not store.check([f"{key}{one}"])]
        if not missing:
            return
        if time.monotonic() - began > COMES and missing != said:
            said = missing
            shown = ", ".join(map(str, missing[:_SHOWN]))
            more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
            _say(
                f"{what} {shown}{more} of {count} did not come to {host}:{port} in "
                f"{time.monotonic() - began:.0f} s. The others wait for it: is it started, with "
                "this address, and on the same network?"
            )


def _say(line: str) -> None:
    """From every rank: rank 0 may be the one that is not there."""
    tell(f"{PREFIX} warning: {line}")
