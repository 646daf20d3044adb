"""A Python that has its libraries imported already, for the many short CPU runs of the tests.

A rank spends most of its time on importing torch and what Megatron needs besides. A server does
that once; the program that `interpreter` names is used like any Python and becomes a fork of the
server: same arguments, environment, working directory, open files, exit status and signals. Neither
accel_bridge nor Megatron is imported beforehand, so every run activates, verifies and patches anew
(their code is read beforehand); exit functions run, and only the teardown of modules is left out.

For trainings that are compared there is an `active` one, whose forks of `accel_bridge.run` begin
with the bridge active and Megatron imported, wherever their environment says nothing about these:
half of a short run's time. The losses are the same, and other tests prove the way there.

What tests activation, launching, exit statuses, signals or the order of imports, and the emulator
itself, takes a real interpreter. So does, by itself, a command that a fork cannot reproduce.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import re
import select
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import subprocess

#: What Megatron's training imports besides itself, and torchrun.
LIBRARIES = """
torch torch._dynamo torch.distributed.run torch.distributed.checkpoint torch.distributed._tensor
torch.utils.tensorboard torch.utils.cpp_extension torch._inductor.compiler_bisector einops
transformers.models.auto.tokenization_auto sentencepiece tiktoken psutil absl.logging wandb
omegaconf rich
""".split()
#: What `torch.compile` imports where it is not switched off, as on emulated NPUs.
COMPILER = "torch._dynamo.repro.after_aot torch._inductor.compile_fx networkx".split()

#: What is sent where the number of a signal is: the caller's parent has ended.
ORPHANED = b"\0"
#: How many open files one message of Linux takes.
MOST_FILES = 253

#: Variables with these beginnings count when a library is loaded: they must be the server's.
FIXED = ("PYTHON", "LD_", "OMP_", "MKL_", "KMP_", "TORCH_LOGS")
#: Those that a fork can still follow.
FOLLOWED = ("PYTHONPATH", "PYTHONWARNINGS")
#: Those that change no library: the bridge sets the first when it is activated, Ray the second.
WITHOUT_EFFECT = ("OMP_WAIT_POLICY", "PYTHONBREAKPOINT")

#: What every training begins with.
BEGIN = """
from accel_bridge.bridge.activation import activate
activate()
import megatron.training.training
"""
#: Some patches are for recordings only.
BEGIN_RECORDING = f"""
from accel_bridge.recording import Plan, set_plan
set_plan(Plan(""))
{BEGIN}
"""
#: Further servers, in which that was done: the programs that fork from each, as they activate first
#: of all, or are spawned by one that did.
ACTIVE = {
    "run": ("-m (accel_bridge.run|end_to_end.dying) |-c from multiprocessing.spawn import ", BEGIN),
    "record": ("-m accel_bridge.apps.record ", BEGIN_RECORDING),
}
#: Variables with these beginnings count when the bridge is activated or Megatron is imported.
READ = ("ACCEL_BRIDGE_", "_ACCEL_BRIDGE_", "CUDA_", "MEGATRON_", "NVTE_", "TORCH_", "TRITON_")
#: Those that do not: what a training says to the processes that it starts, and what says no more
#: than an absent one.
PASSED_ON = ("ACCEL_BRIDGE_AUTO", "_ACCEL_BRIDGE_SAID", "_ACCEL_BRIDGE_WATCH")
PASSED_ON += ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN", "NVTE_UNFUSED_ATTN")
AS_NONE = {
    "ACCEL_BRIDGE_BACKEND": ("cpu", ""),
    "ACCEL_BRIDGE_PLUGINS": ("",),
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": ("1",),  # torchrun's
}
#: A process that imports nothing.
TRACKER = "from multiprocessing.resource_tracker import "

PROGRAM = """\
#!{python} -IS
import sys
sys.path.insert(0, {tests!r})
import warm_python
warm_python.ask({servers!r}, {python!r})
"""

Program = Callable[[], None]


def interpreter(*, emulated: bool = False, cuda: bool = False, active: bool = False) -> str:
    """The path of the warm Python, one for all processes of a test session.

    On a machine with an accelerator this Python itself, unless CUDA is asked for: importing the
    libraries starts no CUDA, and each fork starts its own.

    :param emulated: the one for `accel-bridge emulate-ascend`, which has torch_npu imported too.
    :param cuda: the one for runs on NVIDIA GPUs.
    :param active: trainings on the CPU start with the bridge active and Megatron imported, where
        nothing in their environment is about these; for what compares trainings.
    """
    if active and not emulated:
        return _active(_interpreter("cpu"))
    return _interpreter("npu" if emulated else "cuda" if cuda else "cpu")


@contextlib.contextmanager
def spawning() -> Iterator[None]:
    """Processes that this one spawns meanwhile are forks of the warm one."""
    from multiprocessing import spawn

    own = spawn.get_executable()
    spawn.set_executable(interpreter())
    try:
        yield
    finally:
        spawn.set_executable(own)


@functools.cache
def _interpreter(kind: str) -> str:
    import fcntl

    from accel_bridge.bridge.selection import select
    from accel_bridge.plugins.manager import load_plugins
    from accel_bridge.process.environment import Settings

    if kind != "cuda" and select(load_plugins(), Settings()).chosen.name != "cpu":
        return sys.executable
    directory = _session(kind)
    with open(directory / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (directory / "python").exists():
            start_kind(kind, directory, _owner())
    started_with.update(json.loads((directory / "environ").read_text()) if kind == "cpu" else {})
    return str(directory / "python")


@functools.cache
def _active(warm: str) -> str:
    """The program whose trainings are forks of those of ``warm`` that :data:`ACTIVE` describes."""
    import fcntl

    if warm == sys.executable:
        return warm
    directory, owner = Path(warm).parent, _owner()
    with open(directory / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (directory / "active").exists():
            environ = json.loads((directory / "environ").read_text())
            # What the activation sets, it sets in the forks.
            own = [
                name for name in environ if name not in os.environ and not name.startswith(FIXED)
            ]
            environ = {name: environ[name] for name in environ.keys() - own}
            for name, (_, begin) in ACTIVE.items():
                start(directory, owner, environ, [], begin, python=warm, name=name)
            servers = [
                (words, str(directory / f"{name}.socket")) for name, (words, _) in ACTIVE.items()
            ]
            servers.append(("", str(directory / "python.socket")))
            _write_program(directory / "active", servers)
    return str(directory / "active")


def _owner() -> int:
    """The process with which a server ends: pytest-xdist's, or this one."""
    return os.getppid() if "PYTEST_XDIST_TESTRUNUID" in os.environ else os.getpid()


def _session(kind: str) -> Path:
    """The server's directory."""
    import tempfile

    session = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    # Not below pytest's directory: the address of a socket is 107 characters at most.
    if session is None:
        return Path(tempfile.mkdtemp(prefix="warm-python-"))
    directory = Path(tempfile.gettempdir(), f"warm-python-{session}-{kind}")
    directory.mkdir(mode=0o700, exist_ok=True)
    return directory


def start_kind(kind: str, directory: Path, owner: int, **variables: str) -> subprocess.Popen[bytes]:
    """Start a server as those of a test session, and write down the environment that it runs in.

    :param variables: those of its environment that are others than usual.
    """
    environ, modules = _environment(kind), list(LIBRARIES)
    (directory / "environ").write_text(json.dumps(environ))
    if kind == "npu":
        environ = _emulated(environ, directory)
        modules[1:1] = ["torch_npu", *COMPILER]
    return start(directory, owner, {**environ, **variables}, modules)


def start(
    directory: Path,
    owner: int,
    environ: Mapping[str, str],
    modules: Sequence[str],
    prepare: str = "",
    python: str = sys.executable,
    name: str = "python",
) -> subprocess.Popen[bytes]:
    """Start a server; ``directory / name`` is its program.

    :param owner: the process with which it ends.
    :param modules: what it imports; what is not installed is passed over.
    :param prepare: Python that it runs then; the environment variables that this sets are the
        forks' too, as where it activates a bridge.
    :param python: what runs it; another server's program makes it a fork of that.
    """
    import subprocess

    program, tests = directory / name, str(Path(__file__).parent)
    with socket.socket(socket.AF_UNIX) as listener, open(f"{program}.log", "w") as log:
        listener.bind(f"{program}.socket")
        listener.listen(64)
        words = f"{listener.fileno()}, {str(program)!r}, {list(modules)!r}, {owner}, {prepare!r}"
        code = f"import sys; sys.path.append({tests!r}); import warm_python; "
        server = subprocess.Popen(
            [python, "-c", f"{code}warm_python.serve({words})()"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=dict(environ),
            pass_fds=[listener.fileno()],
            start_new_session=True,
        )
    _write_program(program, [("", f"{program}.socket")])
    return server


def _write_program(path: Path, servers: Sequence[tuple[str, str]]) -> None:
    """Write what asks servers: (words of the programs that it asks it for, its socket)."""
    draft, tests = path.with_suffix(".draft"), str(Path(__file__).parent)
    draft.write_text(PROGRAM.format(python=sys.executable, tests=tests, servers=servers))
    draft.chmod(0o755)
    draft.rename(path)


#: The environment of the CPU's server.
started_with: dict[str, str] = {}
#: Variables that a server's preparation has set.
kept: dict[str, str] = {}


def _environment(kind: str) -> dict[str, str]:
    """As it is when torch is imported: what the launcher and the backend set."""
    from accel_bridge.backends.cpu.plugin import accel_bridge_backends

    (backend,) = accel_bridge_backends()
    # With NVML, a look for GPUs starts no CUDA, which survives no fork.
    own = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"} if kind == "cuda" else backend.environment()
    fixed = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": "1"}
    environ = {**os.environ, **own, **fixed}
    return {name: value for name, value in environ.items() if name not in FOLLOWED}


def _emulated(environ: Mapping[str, str], root: Path) -> dict[str, str]:
    """The environment in which torch_npu can be imported; its devices are each program's own."""
    from accel_bridge.backends.ascend.emulator._build import build
    from accel_bridge.backends.ascend.emulator._launch import DEFAULT, environment, furnish
    from accel_bridge.backends.ascend.emulator._torch_npu import find_torch_npu
    from accel_bridge.backends.ascend.limits import Rules

    furnish(root, 0, {}, Rules(*DEFAULT))
    torch_npu = find_torch_npu(install=True)
    return environment(torch_npu, build(torch_npu), root, 1 << 30, environ)


def ask(servers: Sequence[tuple[str, str]], python: str) -> None:
    """What the program does: let a server fork, and end as the fork ends.

    :param servers: beginnings of command lines, and who is asked for such; the next one where that
        cannot follow.
    """
    answer, command = "real", " ".join(_split(sys.argv[1:])[1])
    if is_program(sys.argv[1:]):
        for words, address in servers:
            if answer == "real" and re.match(words, command):
                answer = _ask(address)
    if answer == "real":
        os.execv(python, [python, *sys.argv[1:]])
    if not answer:
        raise SystemExit(f"the server of {sys.argv[0]} has ended; see its log")
    if int(answer) < 0:
        with contextlib.suppress(OSError):  # SIGKILL's is fixed
            signal.signal(-int(answer), signal.SIG_DFL)
        os.kill(os.getpid(), -int(answer))
    os._exit(int(answer))


def _ask(address: str) -> str:
    """How the fork ended; "real" where a server says that it cannot follow."""
    files = inherited_files()
    request = json.dumps([sys.argv, dict(os.environ), os.getcwd(), files]).encode()
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(address)
        socket.send_fds(server, [len(request).to_bytes(4, "big")], files)
        server.sendall(request)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda number, _: server.sendall(bytes([number])))
        parent = os.getppid()
        while not select.select([server], [], [], 0.25)[0]:
            if os.getppid() != parent:
                server.sendall(ORPHANED)
                os._exit(1)
        return server.recv(64).decode()


def inherited_files() -> list[int]:
    """Numbers of the open files that this process was started with, as a pipe of its parent's."""
    files = [0, 1, 2]
    for number in sorted(map(int, os.listdir("/proc/self/fd"))):
        with contextlib.suppress(OSError):  # the directory's own has been closed
            if number > 2 and os.get_inheritable(number):
                files.append(number)
    return files


def serve(
    listener: int, program: str, modules: Sequence[str], owner: int, prepare: str = ""
) -> Program:
    """Import the libraries and fork for each request; returns in the forks, with what to run.

    The parameters are those of :func:`start`.
    """
    import gc
    import importlib
    import shutil

    try:
        alive = os.pidfd_open(owner)
    except ProcessLookupError:
        raise SystemExit(f"process {owner} has ended") from None
    # Each fork gets those of its own; what setuptools adds for itself goes, too.
    own = ["", os.path.dirname(__file__), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    paths = [path for path in sys.path if path not in own]
    for name in modules:
        with contextlib.suppress(ModuleNotFoundError):  # wandb, say: a run that needs it says so
            importlib.import_module(name)
    if prepare:
        before = dict(os.environ)
        exec(prepare, {})
        kept.update(item for item in os.environ.items() if before.get(item[0]) != item[1])
    sys.path[:] = paths
    if modules:
        _read_code("accel_bridge", "megatron", "transformer_engine")
        _name_methods_quickly()
    # The collector would otherwise write to every object, and so copy every page, in every fork.
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(fileno=listener) as server:
        while alive not in select.select([server, alive], [], [])[0]:
            connection, _ = server.accept()
            if os.fork() == 0:
                server.close()
                os.close(alive)
                return _supervise(connection)
            connection.close()
    shutil.rmtree(os.path.dirname(program), ignore_errors=True)
    raise SystemExit


def _read_code(*packages: str) -> None:
    """Read the code of packages, which each fork executes by itself."""
    from importlib.machinery import SourceFileLoader
    from importlib.util import find_spec

    known = {}
    specs = filter(None, map(find_spec, packages))  # which imports none of them
    found = [directory for spec in specs for directory in spec.submodule_search_locations or ()]
    parts = ("backends", "patches", "pretrain")  # of accel_bridge, beside it in a checkout
    for directory in (*found, *(Path(__file__).parents[1] / part for part in parts)):
        for path in map(str, Path(directory).rglob("*.py")):
            with contextlib.suppress(SyntaxError):  # a template, say
                known[path] = SourceFileLoader("known", path).get_code("known")
    read = SourceFileLoader.get_code

    def get_code(self: Any, fullname: str) -> CodeType | None:
        return known.get(self.path) or read(self, fullname)

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign]


def _name_methods_quickly() -> None:
    """Torchrun names the methods of its log by ``inspect.stack``, half a second of 3000 modules."""
    from torch.distributed.elastic.rendezvous import dynamic_rendezvous

    vars(dynamic_rendezvous)["get_method_name"] = lambda depth=2: (
        sys._getframe(depth).f_code.co_name
    )


def _supervise(connection: socket.socket) -> Program:
    """Fork once more, pass signals on, and tell the status; the fork dies with its caller."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    head, files, _, _ = socket.recv_fds(connection, 4, MOST_FILES)
    with connection.makefile("rb") as stream:
        argv, environ, directory, places = json.loads(stream.read(int.from_bytes(head, "big")))
    program, *arguments = argv
    if not can_follow(arguments, environ):
        connection.sendall(b"real")
        os._exit(0)
    process = os.fork()
    if process == 0:
        os.setsid()
        connection.close()
        _place(files, places)
        # Made anew: those of the server remember that it writes to a file, which can seek.
        sys.stdin, sys.stdout, sys.stderr = (
            open(place, mode, buffering=1, errors=errors, closefd=False)  # noqa: SIM115
            for place, (mode, errors) in enumerate(
                (("r", "strict"), ("w", "strict"), ("w", "backslashreplace"))
            )
        )
        # A manager's process goes back to these.
        sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]
        return functools.partial(
            _run, functools.partial(_become, program, arguments, environ, directory)
        )
    ended = os.pidfd_open(process)
    for file in (0, 1, 2, *files):
        os.close(file)
    while ended not in (ready := select.select([connection, ended], [], [])[0]):
        number = connection.recv(1) if ready else b""
        if number == ORPHANED:
            os._exit(0)  # so the fork has another parent, too
        if not number:
            _kill(process)
            break
        os.kill(process, number[0])
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    try:
        connection.sendall(str(status).encode())
    except OSError:
        _kill(process)  # what it started goes, too
    os._exit(0)


def _place(files: Sequence[int], places: Sequence[int]) -> None:
    """Give open files the numbers that they have in the caller; some may be others' here."""
    import fcntl

    aside = [fcntl.fcntl(file, fcntl.F_DUPFD, max(places) + 1) for file in files]
    for file in files:
        os.close(file)
    for file, place in zip(aside, places, strict=True):
        os.dup2(file, place)
        os.close(file)


def _kill(process: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)


def can_follow(arguments: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Whether a fork of this process is what a new interpreter would be."""
    wanted = {**kept, **environ}
    if not is_program(arguments) or _fixed(wanted) != _fixed(os.environ):
        return False
    return "accel_bridge" not in sys.modules or _read(wanted) == _read(os.environ)


def _read(environ: Mapping[str, str]) -> dict[str, str]:
    """What counts where the bridge is active already, and what may hide a module."""
    root = str(Path(__file__).parents[1])
    paths = environ.get("PYTHONPATH", "").split(os.pathsep)
    return {"PYTHONPATH": os.pathsep.join(path for path in paths if not path.startswith(root))} | {
        name: value
        for name, value in environ.items()
        if name.startswith(READ) and name not in PASSED_ON and value not in AS_NONE.get(name, ())
    }


def is_program(arguments: Sequence[str]) -> bool:
    """Whether they name a program, with no option of the interpreter but -u and -W before it."""
    _, words = _split(arguments)
    return bool(words) and (not words[0].startswith("-") or words[0] in ("-m", "-c"))


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The interpreter's own options that a fork can follow, torchrun's and a spawn's; the rest."""
    options = list(itertools.takewhile(re.compile("-u$|-W.").match, arguments))
    return options, list(arguments[len(options) :])


def _fixed(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environ.items()
        if name.startswith(FIXED) and name not in FOLLOWED and name not in WITHOUT_EFFECT
    }


def _run(program: Program) -> None:
    """Run it, and end as an interpreter does, except that 3000 modules are not torn down."""
    import atexit
    import threading

    status: object = None
    try:
        program()
    except SystemExit as end:
        status = end.code
    except Exception:
        sys.excepthook(*sys.exc_info())
        status = 1
    if not isinstance(status, int | None):
        print(status, file=sys.stderr)
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if not stream.closed:  # as the tracker of resources does
            stream.flush()
    os._exit((status or 0) & 0xFF)


def _become(program: str, arguments: list[str], environ: Mapping[str, str], directory: str) -> None:
    """Run the command line as ``__main__``, as a new interpreter would."""
    import atexit
    import importlib
    import io
    import multiprocessing.process
    import multiprocessing.spawn
    import runpy
    import warnings
    from types import ModuleType

    import numpy

    os.environ.clear()
    os.environ.update({**kept, **environ})
    os.chdir(directory)
    multiprocessing.process.ORIGINAL_DIR = directory  # where what it spawns begins
    sys.executable = program
    # What a fork spawns is one too: a manager of Megatron's checkpoints imported all of it anew.
    multiprocessing.spawn.set_executable(program)
    if activation := sys.modules.get("accel_bridge.bridge.activation"):
        report, bridge = activation._report_at_exit, activation.current()
        atexit.unregister(report)
        atexit.register(report, bridge, os.getpid())
    numpy.random.seed()
    paths = environ.get("PYTHONPATH", "")
    sys.path[:0] = [os.path.abspath(path) for path in paths.split(os.pathsep) if path]
    importlib.invalidate_caches()
    options, arguments = _split(arguments)
    said = filter(None, environ.get("PYTHONWARNINGS", "").split(","))
    given = (option[2:] for option in options if option != "-u")
    sys.warnoptions[:] = dict.fromkeys((*said, *given))  # each once, as Python keeps them
    warnings._processoptions(sys.warnoptions)  # type: ignore[attr-defined]
    if "-u" in options:
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            raw: Any = io.FileIO(stream.fileno(), "w", closefd=False)
            text = io.TextIOWrapper(raw, stream.encoding, stream.errors, write_through=True)
            setattr(sys, name, text)
    main: Any = ModuleType("__main__")
    main.__annotations__ = {}
    sys.modules["__main__"] = main
    sys.argv = arguments if arguments[0] not in ("-m", "-c") else [arguments[0], *arguments[2:]]
    with contextlib.suppress(ModuleNotFoundError):
        # Below `accel-bridge run` a Python waits for the import of torch, which is here already.
        import accel_bridge_hook

        accel_bridge_hook.stand_down()
        if not arguments[-1].startswith(TRACKER):
            accel_bridge_hook._activate("torch")
    if arguments[0] == "-m":
        sys.path.insert(0, directory)
        runpy._run_module_as_main(arguments[1])  # type: ignore[attr-defined]
    elif arguments[0] == "-c":
        sys.path.insert(0, "")
        exec(compile(arguments[1], "<string>", "exec"), vars(main))
    else:
        sys.path.insert(0, os.path.dirname(os.path.realpath(arguments[0])))
        main.__file__, main.__cached__ = arguments[0], None
        with open(arguments[0], "rb") as script:
            code = compile(script.read(), arguments[0], "exec")
        exec(code, vars(main))
