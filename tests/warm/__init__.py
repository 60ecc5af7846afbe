"""A python that starts in a tenth of a second, because it has imported torch already.

Starting Python and importing torch takes two seconds, and transformers five more; a suite that runs two hundred
programs would do little else. :func:`python` is a command that may stand where ``sys.executable`` does: the program is
run by a fork of a process (``server.py``) that did the imports, with the arguments, folder, environment and open
streams of whoever called (``client.py``). It ends as the program ends, by its code or by its signal.

What it leaves to ``sys.executable``: options of Python other than ``-u``, ``-c`` and ``-m``, variables that Python or
OpenMP read when they start, limits and descriptors set for the child, signals (``kill`` ends the program all the same),
and tests that are about how a program starts.
"""

from __future__ import annotations

import atexit
import functools
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
_servers: list[subprocess.Popen[bytes]] = []  # each ends when the pipe to it is closed, with this process


@functools.cache
def python(*modules: str) -> str:
    """The path of a command that runs programs as ``python`` does; torch and these modules are imported already."""
    folder = Path(tempfile.mkdtemp(prefix="warm-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    command, address = folder / "python", folder / "socket"
    boot = "from tests.warm.server import next_program; exec(next_program())"
    server = subprocess.Popen(
        [sys.executable, "-c", boot, str(address), "torch", *modules],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=HERE.parents[1],
    )  # fmt: skip
    _servers.append(server)
    assert server.stdout is not None and server.stdout.readline() == b"listening\n"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -IS "{HERE / "client.py"}" "{address}" "$@"\n')
    command.chmod(0o700)
    return str(command)
