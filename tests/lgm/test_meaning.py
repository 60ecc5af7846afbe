"""Files with nonsense inside: whatever they say, a command does its work or says in one line what is wrong, and soon.

Bytes flipped at random are all caught by checksums (``test_codec``). Here files are whole, and what they say is not.
"""

from __future__ import annotations

import copy
import itertools
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
from lgm.command.cli import main

from .random_traces import lawless, training

Content = tuple[Any, dict[str, Any]]
"""A file: its header, and its arrays."""

SECONDS = 5.0  # of a processor, for one command on one file
MEMORY = 2 << 30  # more than before it; so that a defect costs a failed test and not the machine
EVERY = 36
"""A file is refused or read by all commands alike, so one of them reads every fourth, and the others try a few.
With 1 here all commands try all files, in two minutes."""
INTEGERS = (-(2**63), -1, 0, 1, 7, 2**31, 2**62, 2**63 - 1)
FLOATS = (0.5, -1.5, float(2**70), float("nan"), float("inf"))
TEXTS = ("", "7", "tensor", "a\nb", "\ud800")
VALUES = (None, True, *INTEGERS, 10**9, 2**70, 10**400, *FLOATS, *TEXTS, [], [1], {}, {"x": 1})
MISSING = object()

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


def inside(header: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        header = header[key]
    return header


def with_value(header: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    changed = copy.deepcopy(header)
    around = inside(changed, path[:-1])
    if value is MISSING:
        del around[path[-1]]
    else:
        around[path[-1]] = value
    return changed


def changed_headers(whole: Content) -> Iterator[tuple[str, Content]]:
    header, arrays = whole
    for path in places(header):
        name = ".".join(map(str, path)) or "header"
        for value in VALUES:
            yield f"{name} = {value!r:.40}", (with_value(header, path, value), arrays)
        if path:
            yield f"{name} is missing", (with_value(header, path, MISSING), arrays)
        if isinstance(inside(header, path), dict):
            yield f"{name} has one more", (with_value(header, (*path, "more"), 1), arrays)


def changed_arrays(whole: Content) -> Iterator[tuple[str, Content]]:
    header, arrays = whole
    for name, array in arrays.items():
        yield f"{name} is missing", (header, {k: v for k, v in arrays.items() if k != name})
        for what, change in RESHAPED.items():
            yield f"{name}: {what}", (header, arrays | {name: change(array)})
        for value in FLOATS:
            yield f"{name}: all = {value}", (header, arrays | {name: np.full(len(array), value)})
        for number in INTEGERS:
            for where, at in (("first", slice(0, 1)), ("last", slice(-1, None)), ("all", slice(None))):
                other = array.astype(np.int64)
                other[at] = number
                yield f"{name}: {where} = {number}", (header, arrays | {name: other})


def likely_arrays(whole: Content) -> Iterator[tuple[str, Content]]:
    """Numbers that could be right: one or two arrays with entries exchanged, of another place, or off by a little."""
    header, arrays = whole
    rng = np.random.default_rng(0)
    filled = [name for name in arrays if len(arrays[name])]
    for k in range(200):
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
        yield f"likely {k}: {' and '.join(what)}", (header, changed)


def mutants(whole: Content) -> Iterator[tuple[str, Content]]:
    yield from changed_headers(whole)
    yield from changed_arrays(whole)
    yield from likely_arrays(whole)


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
    one_line = said.endswith("\n") and said[:-1].isprintable() and len(said) < 500
    clean = code == 2 and said.startswith("lgm: ") and one_line and "pickle" not in said
    return "" if clean else f"exit {code}: {said!r:.300}"


def report(command: str, tried: int, failures: dict[str, str], seconds: float) -> None:
    kinds = Counter(text.split(":")[0] for text in failures.values())
    print(f"{command}: {tried} files, {len(failures)} failures {dict(kinds)}, {seconds:.1f} s")
    assert not failures, f"{len(failures)} of {tried}: " + "; ".join(f"[{k}] {v}" for k, v in [*failures.items()][:40])


TRACE_COMMANDS = {
    "show": ["show", "{file}"],
    "analyze": ["analyze", "{file}", "--budget", "0.7", "--link", "2MB/s", "-o", "{out}"],
    "simulate": ["simulate", "{file}", "--budget", "0.7", "--link", "2MB/s"],
    "fit": ["fit", "{file}", "--link", "2MB/s"],
}
PLAN_COMMANDS = {
    "show": ["show", "{file}", "--graph", "5"],
    "validate": ["validate", "{file}"],
    "perfetto": ["perfetto", "{file}", "-o", "{out}"],
}


def try_all(
    command: str, arguments: list[str], base: list[Path], capsys: pytest.CaptureFixture[str], every: int = 1
) -> None:
    file, out = base[0].with_name("mutant.npz"), base[0].with_name("out")
    filled = [a.format(file=file, out=out) for a in arguments]
    failures, tried, begun = {}, 0, time.perf_counter()
    for path in base:
        whole = content(path)
        write(file, *whole)
        assert wrong(filled, capsys) == ""
        for name, changed in itertools.islice(mutants(whole), len(command) % every, None, every):
            write(file, *changed)
            tried += 1
            if text := wrong(filled, capsys):
                failures[f"{path.stem}: {name}"] = text
    report(command, tried, failures, time.perf_counter() - begun)


def traces(folder: Path) -> list[Path]:
    lgm.save_trace(training(1), folder / "training")
    lgm.save_trace(lawless(33), folder / "lawless")
    return [folder / "training", folder / "lawless"]


def plans(folder: Path) -> list[Path]:
    plan = lgm.analyze(training(2), lgm.Device(30, 2e6, 2e6))
    assert len(plan.in_op) > 3
    lgm.save_plan(plan, folder / "plan")
    return [folder / "plan"]


@pytest.mark.parametrize("command", TRACE_COMMANDS)
def test_a_trace_that_makes_no_sense(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    every = {"show": 4, "fit": 4 * EVERY}.get(command, EVERY)  # to fit is to analyze many times
    try_all(command, TRACE_COMMANDS[command], traces(tmp_path), capsys, every)


@pytest.mark.parametrize("command", PLAN_COMMANDS)
def test_a_plan_that_makes_no_sense(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try_all(command, PLAN_COMMANDS[command], plans(tmp_path), capsys, 4 if command == "validate" else EVERY)


def test_a_source_file_is_no_trace(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", __file__]) == 2
    assert "it is no .npz file" in (said := capsys.readouterr().err)
    assert "pickle" not in said


def test_a_session_refuses_a_plan_that_makes_no_sense(tmp_path: Path) -> None:
    read_plan = pytest.importorskip("vtensor.planning.plans", exc_type=ImportError).read_plan  # where torch is
    from vtensor.errors import ConfigError

    whole, path = plans(tmp_path)[0], tmp_path / "mutant.npz"
    header, arrays = content(whole)
    durations = arrays | {"trace.op_ns": np.full(len(arrays["trace.op_ns"]), 10**18)}
    prediction = header | {"prediction": header["prediction"] | {"step_seconds": 1e9}}
    sizes = arrays | {"trace.tensor_bytes": np.full(len(arrays["trace.tensor_bytes"]), 2**50)}
    for changed in (
        (header, durations),
        (prediction, arrays),
        (header, sizes),
        (header | {"chunk_bytes": 2**70}, arrays),
    ):
        write(path, *changed)
        with limits(), pytest.raises(ConfigError, match="damaged"):
            read_plan(path)
