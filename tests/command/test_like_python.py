"""``vtensor run`` beside ``python``: the same output, the same words of errors, the same end; 48 small scripts."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# Each is started in a folder of its own with the arguments A and --budget=1, and finds "typed\n" on stdin.
SCRIPTS = {
    # What a program sees of itself.
    "arguments": "import sys; print(sys.argv, sys.orig_argv[-2:])",
    "file": "print(__file__, __name__, __doc__, __package__, __builtins__.__name__)",
    "docstring": "'''What it is for.'''\nprint(__doc__)",
    "annotations": "x: int = 3\nprint(__annotations__, x)",
    "future": "from __future__ import annotations\nx: nonsense = 3\nprint(__annotations__)",
    "main": "import __main__; y = 3\nprint(__main__.y, __main__.__file__ == __file__)",
    "source": "import inspect\ndef f(): return 1  # told\nprint(inspect.getsource(f))",
    "path": "import sys, os; print(sys.path[0] == os.getcwd())",
    "globals": "print(sorted(n for n in globals() if n not in ('__cached__', '__loader__', '__spec__')))",
    "parser": "import argparse\np = argparse.ArgumentParser(); p.add_argument('what')\n"
    "p.add_argument('--budget', type=int); print(p.parse_args())",
    "usage": "import argparse\np = argparse.ArgumentParser(); p.add_argument('--lr'); p.parse_args()",
    "encoding": "# -*- coding: latin-1 -*-\nprint('ä')",
    # How it ends.
    "exit code": "import sys; sys.exit(3)",
    "exit words": "raise SystemExit('why')",
    "exit none": "import sys; print('x', end=''); sys.exit()",
    "exit true": "import sys; sys.exit(True)",
    "exit tuple": "import sys; sys.exit((1, 2))",
    "exit deep": "def f(n): f(n - 1) if n else exit(5)\nf(3)",
    "at once": "import os; print('no', flush=True); os._exit(4)",
    "error": "def f(x): return 1 / x\ndef g(): f(0)\ng()",
    "error in an error": "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise ValueError('told') from e",
    "group": "raise ExceptionGroup('all', [ValueError(1), TypeError(2)])",
    "note": "e = ValueError('x'); e.add_note('a note'); raise e",
    "syntax": "def f(:\n    pass",
    "indent": "if True:\nprint(1)",
    "import": "import surely_not_installed",
    "assert": "assert 1 == 2, 'never'",
    "recursion": "import sys\ndef f(): f()\ntry:\n    f()\nexcept RecursionError as e: print(type(e).__name__)",
    "interrupt": "raise KeyboardInterrupt",
    "interrupt cleans up": "import logging, logging.handlers as h, tempfile\n"
    "f = open('rows.csv', 'w'); f.write('step,loss'); d = tempfile.TemporaryDirectory(dir='.')\n"
    "logging.getLogger().addHandler(h.MemoryHandler(99, target=logging.FileHandler('all.log')))\n"
    "logging.warning('seen'); raise KeyboardInterrupt",
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "handled": "import os, signal\nsignal.signal(signal.SIGTERM, lambda *a: print('term'))\n"
    "os.kill(os.getpid(), signal.SIGTERM)",
    "at exit": "import atexit; atexit.register(print, 'bye'); print('hello')",
    "at exit of an error": "import atexit; atexit.register(print, 'bye'); 1 / 0",
    "afterwards": "import atexit, sys\n"
    "atexit.register(lambda: print(sys.last_type, sys.last_value, sys.last_traceback.tb_lineno)); 1 / 0",
    # Hooks.
    "excepthook": "import sys\nsys.excepthook = lambda t, v, tb: print('hook', t, tb.tb_lineno, tb.tb_next)\n1 / 0",
    "excepthook that fails": "import sys\ndef hook(*_): raise ValueError('hook')\nsys.excepthook = hook\n1 / 0",
    "unraisable": "class A:\n    def __del__(self): 1 / 0\na = A()\ndel a\nprint('on')",
    "thread": "import threading\nt = threading.Thread(target=lambda: 1 / 0); t.start(); t.join(); print('on')",
    "displayhook": "import sys; sys.displayhook(3)",
    # Streams, processes, packages.
    "stdin": "import sys; print(input(), repr(sys.stdin.read()))",
    "streams": "import sys; print('a', file=sys.stderr); print('b'); sys.stdout.write('no newline')",
    "fork": "import os\np = os.fork()\nif not p:\n    print('child', flush=True); os._exit(7)\n"
    "print(os.waitstatus_to_exitcode(os.wait()[1]))",
    "spawn": "import multiprocessing as m\ndef f(x): return x * x\nif __name__ == '__main__':\n"
    "    with m.get_context('spawn').Pool(1) as p: print(p.map(f, [1, 2]))",
    "pickle": "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))) is A)",
    "dataclass": "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int = 1\nprint(A(), A.__module__)",
    "sibling": "import beside; print(beside.VALUE, beside.__file__)",
    "resource": "from pathlib import Path; print(Path(__file__).with_name('beside.py').read_text())",
    "self": "import runpy; print(runpy.run_path('beside.py')['VALUE'])",
    "warning": "import warnings; warnings.warn('careful'); print('on')",
    "async": "import asyncio\nasync def f(): await asyncio.sleep(0); return 4\nprint(asyncio.run(f()))",
}
ADDRESS = re.compile("0x[0-9a-f]+")
QUICK = ("annotations", "interrupt cleans up", "error in an error", "exit words", "at exit of an error", "stdin")


def ended(folder: Path, *how: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *how, "script.py", "A", "--budget=1"],
        input="typed\nmore\n", capture_output=True, text=True, timeout=120, cwd=folder, check=False,
    )  # fmt: skip


def left_behind(folder: Path) -> dict[str, str]:
    """What a program wrote, by name; it is gone then."""
    found = {}
    for path in folder.iterdir():
        if path.is_dir() and path.name != "__pycache__":
            found[path.name] = "a folder"
            shutil.rmtree(path)
        elif path.is_file() and path.name not in ("script.py", "beside.py"):
            found[path.name] = path.read_text()
            path.unlink()
    return found


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in SCRIPTS]
)
def test_like_python(tmp_path: Path, name: str) -> None:
    encoding = "latin-1" if name == "encoding" else "utf-8"
    (tmp_path / "script.py").write_text(SCRIPTS[name] + "\n", encoding=encoding)
    (tmp_path / "beside.py").write_text("VALUE = 'beside'\n")
    python = ended(tmp_path)
    left = left_behind(tmp_path)
    vtensor = ended(tmp_path, "-m", "vtensor", "run", "--budget", "64MiB")
    assert left_behind(tmp_path) == left
    assert vtensor.stdout == python.stdout
    assert vtensor.returncode == python.returncode
    said = iter(ADDRESS.sub("0x", vtensor.stderr).splitlines())
    for line in ADDRESS.sub("0x", python.stderr).splitlines():  # with words of vtensor's own behind them
        assert line in said, f"{line!r} is missing or elsewhere in:\n{vtensor.stderr}"


def test_threads_that_outlive_the_script_keep_their_budget(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import threading, time, torch, vtensor\n"
        "def train():\n"
        "    time.sleep(1)\n"
        "    tensors = [torch.full((1 << 20,), float(i)) for i in range(8)]\n"
        "    print(vtensor.is_enabled(), sum(float(t[0]) for t in tensors))\n"
        "threading.Thread(target=train).start()\n"
        "print('ends')\n"
    )
    done = ended(tmp_path, "-m", "vtensor", "run", "--budget", "16MiB")
    assert (done.returncode, done.stdout) == (0, "ends\nTrue 28.0\n"), done.stderr
    assert "moved out" in done.stderr and "nothing was managed" not in done.stderr


def test_the_program_may_end_while_a_plan_is_made(tmp_path: Path) -> None:
    """The thread is in C++ code of NumPy's then, and Python ends threads wherever they stand."""
    script = tmp_path / "ends.py"
    script.write_text(
        "import time, numpy, vtensor\n"
        "from vtensor import planning\n"
        "vtensor.enable('64MiB', device='cpu')\n"
        "numbers = numpy.random.default_rng(0).integers(0, 1 << 40, 200_000)\n"
        "def task():\n"
        "    while True:\n"
        "        numpy.unique(numbers)\n"
        "planning.current().maker.work.start(task)\n"
        "time.sleep(0.3)\n"
    )
    for _ in range(3):
        ended = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, check=False)
        assert (ended.returncode, ended.stderr) == (0, "")
