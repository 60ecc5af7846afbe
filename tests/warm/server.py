"""The process of which programs are forked: it imports what they need, then waits until one is asked for.

Each program has a process that watches it, which says how it ended, and ends it if whoever asked is gone.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from pathlib import Path
from types import CodeType
from typing import Any


def next_program() -> CodeType:
    """Returns once in each program's process, with what it is to run as ``__main__``; ends with whoever began it."""
    address, *modules = sys.argv[1:]
    for module in modules:
        importlib.import_module(module)
    gc.freeze()  # or a collection of garbage copies all of it
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        print("listening", flush=True)
        while True:
            if sys.stdin in select.select([listener, sys.stdin], [], [])[0]:
                os._exit(0)  # the other end was closed
            connection, _ = listener.accept()
            if os.fork() == 0:
                break
            connection.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with connection:
        text, streams, *_ = socket.recv_fds(connection, 1 << 20, 3)
        while not text.endswith(b"\n"):
            text += connection.recv(1 << 20)
        if child := os.fork():
            _watch(child, connection)
    for nth, stream in enumerate(streams):
        os.dup2(stream, nth)
        os.close(stream)
    return _become(**json.loads(text))


def _watch(child: int, connection: socket.socket) -> None:
    ended = os.pidfd_open(child)
    if ended not in select.select([ended, connection], [], [])[0]:
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    try:
        connection.sendall(f"{status}\n".encode())
    finally:
        os._exit(0)


def _become(arguments: list[str], folder: str, environment: dict[str, str]) -> CodeType:
    """Make this process what Python would be that was started so; the program's code."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[1:1] = [path for path in environment.get("PYTHONPATH", "").split(":") if path not in sys.path]
    sys.orig_argv = [sys.executable, *arguments]
    if arguments[0] == "-u":
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
        del arguments[0]
    main: dict[str, Any] = vars(sys.modules["__main__"])
    del main["next_program"]
    for module in [name for name in sys.modules if name.split(".")[0] == "tests"]:
        del sys.modules[module]
    match arguments:
        case "-c", text, *rest:
            sys.argv = ["-c", *rest]
            return compile(text, "<string>", "exec")
        case "-m", module, *rest:
            sys.argv, sys.path[0] = ["-m", *rest], folder
            return compile(f"import runpy; runpy._run_module_as_main({module!r})", "<string>", "exec")
        case path, *_:
            sys.argv, sys.path[0], main["__file__"] = arguments, str(Path(path).resolve().parent), path
            return compile(Path(path).read_bytes(), path, "exec")
    raise ValueError(arguments)
