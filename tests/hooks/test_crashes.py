"""A real crash ends the program, and faults of others are theirs, whoever came upon our handler and went."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from ..warm import python

CRASH = """
import ctypes, faulthandler
import vtensor

def begins():
    vtensor.enable("4MiB", device="cpu", chunk=4096, min_size=1)

come, go, ends = faulthandler.enable, faulthandler.disable, vtensor.disable
for happens in ({order}):
    happens()
{crash}
"""
AT_ONCE = "ctypes.string_at(8)"
AT_THE_END = "ctypes.CDLL(None).__cxa_atexit(ctypes.c_void_p(8), None, None)  # when Python has ended already"


@pytest.mark.parametrize(
    ("order", "crash"),
    [
        ("come, begins, come, go", AT_ONCE),
        ("begins, come, go", AT_ONCE),
        ("begins, come, come, go", AT_ONCE),
        ("begins, ends, come, begins, go", AT_ONCE),
        ("begins, come, ends, go", AT_ONCE),
        ("come, begins, go, come, ends, go", AT_ONCE),
        ("come, begins, ends, go, begins, come, go", AT_ONCE),
        ("begins, come", AT_THE_END),
        ("begins, come, ends", AT_THE_END),
    ],
)
def test_a_crash_is_one_whoever_came_and_went(order: str, crash: str) -> None:
    """It is passed on to who was there before, not to who has left for ever."""
    command = [python(), "-c", CRASH.format(order=order, crash=crash)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGSEGV


TAKEN = """
import signal, torch
import vtensor

vtensor.enable("4MiB", device="cpu", chunk=4096, min_size=1)
signal.signal(signal.SIGSEGV, {handler})
xs = [torch.full((1 << 18,), float(i)) for i in range(8)]
absent = next(x for x in xs if vtensor.residency(x).absent)
import ctypes
from vtensor.addresses import address_of
print(ctypes.c_float.from_address(address_of(absent)).value == float(absent[0]))
{after}
"""


@pytest.mark.parametrize("handler", ["signal.SIG_DFL", "lambda *_: print('mine')"])
def test_a_handler_of_the_programs_comes_after_ours(handler: str) -> None:
    """Python's own notes the signal and returns, and the touch would be tried again for ever."""
    for after, code in (("", 0), ("ctypes.string_at(8)", -signal.SIGSEGV))[: 2 if "DFL" in handler else 1]:
        command = [python(), "-c", TAKEN.format(handler=handler, after=after)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout) == (code, "True\n"), done.stderr


SENT = """
import faulthandler, os, signal, sys
import vtensor
vtensor.enable("4MiB", device="cpu", chunk=4096, min_size=1)
if "faulthandler" in sys.argv:
    faulthandler.enable()
os.kill(os.getpid(), signal.SIGSEGV)
print("it goes on")
"""


@pytest.mark.parametrize("arguments", [[], ["faulthandler"]])
def test_a_signal_that_is_sent_ends_the_program(arguments: list[str]) -> None:
    """Nobody touched anything, so nothing is repeated."""
    command = [python(), "-c", SENT, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGSEGV and done.stdout == ""


SERVES = """
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
static char* page;
static long served;
static struct sigaction before;
static sigjmp_buf out;
static void serve(int number, siginfo_t* info, void* context) {
  ++served;
  mprotect(page, 4096, PROT_READ | PROT_WRITE);
}
void begin(void) {
  struct sigaction action = {.sa_sigaction = serve, .sa_flags = SA_SIGINFO | SA_NODEFER};
  page = mmap(0, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  sigaction(SIGSEGV, &action, 0);
}
long touch(long times) {
  for (; times > 0; --times) {
    *(volatile char*)page = 1;
    mprotect(page, 4096, PROT_NONE);
  }
  return served;
}
static void pass(int number, siginfo_t* info, void* context) { before.sa_sigaction(number, info, context); }
void begin_passing(void) {
  struct sigaction action = {.sa_sigaction = pass, .sa_flags = SA_SIGINFO};
  sigaction(SIGSEGV, &action, &before);
}
static void leave(int number) { siglongjmp(out, 1); }
void begin_leaving(void) {
  struct sigaction action = {.sa_handler = leave};
  sigaction(SIGSEGV, &action, 0);
}
int is_readable(char* at) {
  if (sigsetjmp(out, 1)) return 0;
  (void)*(volatile char*)at;
  return 1;
}
"""
PASSED_ON = """
import ctypes, faulthandler, sys
import vtensor
from vtensor import native
library = ctypes.CDLL(sys.argv[1])
vtensor.enable("4MiB", device="cpu", chunk=4096, min_size=1)
library.begin()
native.load().arm_fault_handler()
faulthandler.enable()
faulthandler.disable()
assert library.touch(30000) == 30000
"""


PASSED_BACK = """
import ctypes, sys
import torch, vtensor
from vtensor import native
library = ctypes.CDLL(sys.argv[1])
library.begin()
vtensor.enable("256KiB", device="cpu", chunk=4096, min_size=1)
tensors = [torch.full((4096,), float(i)) for i in range(64)]
library.begin_passing()  # to us, who came upon the first
native.load().arm_fault_handler()
assert library.touch(3) == 3
assert sum(float(tensor[0]) for tensor in tensors) == 2016
"""
LEAVES = """
import ctypes, sys
import vtensor
library = ctypes.CDLL(sys.argv[1])
library.begin_leaving()
vtensor.enable("4MiB", device="cpu", chunk=4096, min_size=1)
assert [library.is_readable(ctypes.c_void_p(8)) for _ in range(3)] == [0, 0, 0]
"""


@pytest.mark.parametrize("program", [PASSED_ON, PASSED_BACK, LEAVES], ids=["on", "back to us", "never to come back"])
def test_a_program_that_serves_faults_of_its_own(program: str, tmp_path: Path) -> None:
    """However many, of one instruction, whoever came and went meanwhile, and whatever its handler does with them."""
    (tmp_path / "serves.c").write_text(SERVES)
    library = str(tmp_path / "serves.so")
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", str(tmp_path / "serves.c"), "-o", library], check=True)
    done = subprocess.run([python(), "-c", program, library], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
