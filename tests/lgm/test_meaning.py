"""Files with nonsense inside: whatever they say, a command does its work or says in one line what is wrong, and soon.

Bytes flipped at random are all caught by checksums (``test_codec``). Here files are whole, and what they say is not.
"""

from __future__ import annotations

import copy
import json
import resource
import signal
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lgm
from lgm.cli import main

from .random_traces import lawless, training

Content = tuple[Any, dict[str, Any]]
"""A file: its header, and its arrays."""

SECONDS = 5.0  # of a processor, for one command on one file
MEMORY = 2 << 30  # more than before it; so that a defect costs a failed test and not the machine
INTEGERS = (-(2**63), -(2**31), -2, -1, 0, 1, 7, 2**31, 2**40, 2**62, 2**63 - 1)
FLOATS = (0.5, -1.5, 1e300, float(2**70), float("nan"), float("inf"))
TEXTS = ("", "7", "tensor", "a\nb", "\ud800", "\x1b[2J")
VALUES = (None, True, *INTEGERS, 2**70, 10**400, *FLOATS, *TEXTS, [], [1], [None], ["x"], {}, {"x": 1})

RESHAPED: dict[str, Callable[[Any], Any]] = {
    "short": lambda a: a[:-1],
    "half": lambda a: a[: len(a) // 2],
    "empty": lambda a: a[:0],
    "long": lambda a: np.append(a, a[-1:]),
    "a hundred times": lambda a: np.tile(a, 100),
    "two rows": lambda a: np.stack([a, a]),
    "a column": lambda a: a[:, None],
    "a number": lambda a: np.array(a.sum()),
    "reversed": lambda a: a[::-1],
    "negative": lambda a: -a.astype(np.int64),
    "thousandfold": lambda a: a.astype(np.int64) * 1000,
    "summed up": lambda a: np.cumsum(a.astype(np.int64)),
    "floats": lambda a: a.astype(np.float64),
    "flags": lambda a: a.astype(np.bool_),
    "complex": lambda a: a.astype(np.complex128),
    "text": lambda a: a.astype(np.str_),
    "bytes": lambda a: a.astype(np.bytes_),
    "dates": lambda a: a.astype("datetime64[s]"),
    "objects": lambda a: a.astype(object),
    "unsigned": lambda a: a.astype(np.uint64) + np.uint64(2**63),
    "records": lambda a: a.astype([("x", np.int64)]),
    "other bytes first": lambda a: a.astype(">i4"),
}


def content(path: Path) -> Content:
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    return json.loads(arrays.pop("header").tobytes()), arrays


def write(path: Path, header: Any, arrays: dict[str, Any]) -> None:
    text = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
    np.savez(path, header=text, **arrays)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something stands in a header; () is the header."""
    yield path
    for key in value if isinstance(value, dict) else range(min(2, len(value))) if isinstance(value, list) else ():
        yield from places(value[key], (*path, key))


def with_value(header: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    changed = copy.deepcopy(header)
    inside = changed
    for key in path[:-1]:
        inside = inside[key]
    if value is places:  # nothing a header can hold: take it away
        del inside[path[-1]]
    else:
        inside[path[-1]] = value
    return changed


def changed_headers(whole: Content) -> Iterator[tuple[str, Content]]:
    header, arrays = whole
    for path in places(header):
        name = ".".join(map(str, path)) or "header"
        for value in VALUES:
            yield f"{name} = {value!r:.40}", (with_value(header, path, value), arrays)
        if path:
            yield f"{name} is missing", (with_value(header, path, places), arrays)
            yield (
                f"{name} has one more",
                (with_value(header, (*path[:-1], "more") if isinstance(path[-1], str) else path, 1), arrays),
            )


def changed_arrays(whole: Content) -> Iterator[tuple[str, Content]]:
    header, arrays = whole
    for name, array in arrays.items():
        yield f"{name} is missing", (header, {k: v for k, v in arrays.items() if k != name})
        for what, change in RESHAPED.items():
            yield f"{name}: {what}", (header, arrays | {name: change(array)})
        for value in (*INTEGERS, *FLOATS):
            kind = np.int64 if isinstance(value, int) else np.float64
            for where, at in (("first", slice(0, 1)), ("last", slice(-1, None)), ("all", slice(None))):
                other = array.astype(kind)
                other[at] = value
                yield f"{name}: {where} = {value}", (header, arrays | {name: other})


def likely_arrays(whole: Content, seed: int) -> Iterator[tuple[str, Content]]:
    """Numbers that could be right: one or two arrays with entries exchanged, of another place, or off by a little."""
    header, arrays = whole
    rng = np.random.default_rng(seed)
    filled = [name for name in arrays if len(arrays[name])]
    for k in range(150):
        changed = dict(arrays)
        what = []
        for name in rng.choice(filled, int(rng.integers(1, 3)), replace=False).tolist():
            array = changed[name].astype(np.int64)
            at = rng.integers(0, len(array), int(rng.integers(1, 4)))
            match int(rng.integers(0, 4)):
                case 0:
                    array[at] += rng.integers(-2, 3, len(at))
                case 1:
                    array[at] = array[rng.integers(0, len(array), len(at))]
                case 2:
                    array = rng.permutation(array)
                case _:
                    array[at] = rng.integers(array.min() - 1, array.max() + 2, len(at))
            changed[name] = array
            what.append(name)
        yield f"likely {k} of {seed}: {' and '.join(what)}", (header, changed)


def mutants(whole: Content) -> Iterator[tuple[str, Content]]:
    yield from changed_headers(whole)
    yield from changed_arrays(whole)
    for seed in range(2):
        yield from likely_arrays(whole, seed)


class TooSlow(BaseException):
    """Nobody catches it by accident."""


@contextmanager
def limits() -> Iterator[None]:
    """Ends what takes too long or too much; warnings of NumPy are errors."""

    def late(*_: object) -> None:
        raise TooSlow(f"more than {SECONDS:.0f} s")

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = signal.signal(signal.SIGVTALRM, late)  # SIGALRM is pytest-timeout's
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, hard))
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGVTALRM, before)


def wrong(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What is wrong with how a command ends, or nothing."""
    try:
        with limits():
            code = main(arguments)
    except (Exception, TooSlow) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        said = capsys.readouterr().err
    if code == 0:
        return ""
    clean = (
        code == 2 and said.startswith("lgm: ") and said.count("\n") == 1 and said.endswith("\n") and len(said) < 1000
    )
    return "" if clean and "pickle" not in said and said[:-1].isprintable() else f"exit {code}: {said!r:.300}"


def report(command: str, tried: int, failures: dict[str, str], seconds: float) -> None:
    kinds = Counter(text.split(":")[0] for text in failures.values())
    print(f"{command}: {tried} files, {len(failures)} failures {dict(kinds)}, {seconds:.1f} s")
    assert not failures, f"{len(failures)} of {tried}: " + "; ".join(f"[{k}] {v}" for k, v in [*failures.items()][:40])


TRACE_COMMANDS = {
    "show": ["show", "{file}"],
    "analyze": ["analyze", "{file}", "--budget", "0.5", "--link", "2MB/s", "-o", "{out}"],
    "simulate": ["simulate", "{file}", "--budget", "0.5", "--link", "2MB/s"],
    "fit": ["fit", "{file}", "--link", "2MB/s"],
}
PLAN_COMMANDS = {
    "show": ["show", "{file}", "--graph", "5"],
    "validate": ["validate", "{file}"],
    "perfetto": ["perfetto", "{file}", "-o", "{out}"],
}


def try_all(command: str, arguments: list[str], base: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    file, out = base[0].with_name("mutant.npz"), base[0].with_name("out")
    filled = [a.format(file=file, out=out) for a in arguments]
    failures, tried, begun = {}, 0, time.perf_counter()
    for path in base:
        whole = content(path)
        write(file, *whole)
        assert wrong(filled, capsys) == ""
        for name, changed in mutants(whole):
            write(file, *changed)
            tried += 1
            if text := wrong(filled, capsys):
                failures[f"{path.stem}: {name}"] = text
    with capsys.disabled():
        pass
    report(command, tried, failures, time.perf_counter() - begun)


@pytest.mark.parametrize("command", TRACE_COMMANDS)
def test_a_trace_that_makes_no_sense(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    traces = {"training": training(2), "lawless": lawless(30)}
    for name, trace in traces.items():
        lgm.save_trace(trace, tmp_path / name)
    try_all(command, TRACE_COMMANDS[command], [tmp_path / name for name in traces], capsys)


@pytest.mark.parametrize("command", PLAN_COMMANDS)
def test_a_plan_that_makes_no_sense(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = lgm.analyze(training(3), lgm.Device(40, 2e6, 2e6))
    assert len(plan.in_op) > 3
    lgm.save_plan(plan, tmp_path / "plan")
    try_all(command, PLAN_COMMANDS[command], [tmp_path / "plan"], capsys)
