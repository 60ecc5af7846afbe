"""Traces and plans as ``.npz`` files: compact, versioned, without pickle, exact both ways.

Covers: writing, reading, and an error that says what is wrong with a file that cannot be read.
Leaves: whether the content makes sense (``model`` checks values, ``validate`` checks plans).

Layout, version 2: every array of a ``Trace`` (``model``) under its own name, delta-free int64 stored in the smallest
type that holds it; ``header`` is JSON in UTF-8 (``format``, ``version``, and what is not an array). A plan file holds
its trace too, with the prefix ``trace.``, so that one file suffices to run it; what it recomputes has the prefix
``again.``, and the trace as it was recorded ``origin.``. Version 1 knew no calls: nothing could be recomputed.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import FormatError, LgmError
from .limits import MOST_ENTRIES
from .model import Device, Ints, Plan, Prediction, Remaking, Trace

__all__ = ["VERSION", "load", "load_plan", "load_trace", "save_plan", "save_trace"]

VERSION = 2
_KINDS = ("trace", "plan")
_TRACE = (
    "op_name",
    "op_ns",
    "op_last",
    "tensor_bytes",
    "tensor_born",
    "tensor_died",
    "use_op",
    "use_tensor",
    "use_first",
    "use_last",
    "use_write",
)
_CALLS = ("call_first", "call_last", "call_again")  # since version 2
_REMAKING = ("at", "tensor", "drop_op", "drop_tensor", "make_op", "make_tensor", "sees")
_PLAN = (
    "out_op",
    "out_tensor",
    "out_first",
    "out_last",
    "in_op",
    "in_tensor",
    "in_first",
    "in_last",
    "in_need",
    "keep",
)
_MOST_BYTES = 8 * MOST_ENTRIES + 4096  # of an array in a file, with what NumPy writes before it


def _small(values: Ints) -> Any:
    for kind in (np.int8, np.int16, np.int32):
        limits = np.iinfo(kind)
        if not len(values) or (values.min() >= limits.min and values.max() <= limits.max):
            return values.astype(kind)
    return values


def _write(path: str | os.PathLike[str], header: dict[str, Any], arrays: dict[str, Ints]) -> None:
    packed = {name: _small(values) for name, values in arrays.items()}
    try:
        text = json.dumps(header, sort_keys=True)
    except (TypeError, ValueError) as error:  # all else in it was checked when it was made
        raise LgmError(f"meta holds what JSON cannot: {error}") from None
    packed["header"] = np.frombuffer(text.encode(), dtype=np.uint8)
    content = io.BytesIO()
    np.savez_compressed(content, allow_pickle=False, **packed)
    _put(Path(path), content.getbuffer())


def _put(path: Path, content: memoryview) -> None:
    """Never half a file under the real name; a link stays one, and so does what is no file (a pipe, ``/dev/null``)."""
    if path.exists() and not path.is_file():
        path.write_bytes(content)
        return
    target = Path(os.path.realpath(path))
    scratch = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        scratch.write_bytes(content)
        scratch.replace(target)
    except OSError as error:
        raise type(error)(error.errno, error.strerror, os.fspath(path)) from None  # the name that was asked for
    finally:
        with suppress(OSError):
            scratch.unlink(missing_ok=True)


@contextmanager
def _reading(path: str | os.PathLike[str]) -> Iterator[None]:
    """Whatever is wrong in it is wrong with the file."""
    try:
        yield
    except FormatError as error:
        raise FormatError(f"{os.fspath(path)}: {error}") from None
    except LgmError as error:
        raise FormatError(f"{os.fspath(path)}: damaged ({error})") from None


def _read(path: str | os.PathLike[str], *kinds: str) -> tuple[dict[str, Any], dict[str, Any]]:
    source = Path(path)
    if not source.is_file():
        what = "a directory; name a file" if source.is_dir() else "no file that can be read"
        raise FormatError(what if source.exists() else "there is no such file")
    header, arrays = _unpacked(source)
    found, version = _entry(header, "format", str), _entry(header, "version", int)
    if version > VERSION:
        raise FormatError(f"written in format {version!r:.40}; this version reads up to {VERSION}. Update vtensor")
    if version < 1 or found not in _KINDS:
        raise FormatError("neither a trace nor a plan of vtensor, or damaged")
    if found not in kinds:
        raise FormatError(f"this is a {found}, not a {' or a '.join(kinds)}")
    return header, arrays


def _unpacked(source: Path) -> tuple[Any, dict[str, Any]]:
    """What JSON is in the header, and the arrays. Errors are not told in NumPy's words: those advise to unpickle."""
    what = "it"
    try:
        if not zipfile.is_zipfile(source):
            raise FormatError("neither a trace nor a plan of vtensor: it is no .npz file, or not a whole one")
        with np.load(source, allow_pickle=False) as file:
            arrays = {}
            for what in file.files:
                if file.zip.getinfo(f"{what}.npy").file_size > _MOST_BYTES:
                    raise FormatError(f"damaged ({what!r:.40} in it has more than {MOST_ENTRIES} entries)")
                arrays[what] = file[what]
        what = "header"
        return json.loads(arrays.pop("header").tobytes().decode()), arrays
    except FormatError:
        raise
    except Exception as error:  # zlib.error and whatever else a damaged archive provokes
        raise FormatError(
            f"neither a trace nor a plan of vtensor, or damaged ({what!r:.40} cannot be read: {type(error).__name__})"
        ) from None


def _entry(header: Any, name: str, kind: type) -> Any:
    """What a dictionary of JSON holds under `name`, which must be of that kind."""
    if not isinstance(header, dict) or type(header.get(name)) is not kind:
        raise FormatError(f"damaged (the header has no {name}, or not of its kind)")
    return header[name]


def _fields(header: Any, kind: type[Device] | type[Prediction], name: str) -> dict[str, Any]:
    """The fields of a dataclass: all of them, and no other."""
    values: dict[str, Any] = _entry(header, name, dict)
    if set(values) != set(kind.__slots__):
        raise FormatError(f"damaged (a {name} has {', '.join(kind.__slots__)})")
    return values


def _rows(arrays: dict[str, Any], names: tuple[str, ...], prefix: str = "") -> dict[str, Any]:
    for name in names:
        if prefix + name not in arrays:
            raise FormatError(f"damaged ({prefix}{name} is missing)")
    return {name: arrays[prefix + name] for name in names}


def _header(kind: str, trace: Trace) -> dict[str, Any]:
    return {
        "format": kind,
        "version": VERSION,
        "chunk_bytes": trace.chunk_bytes,
        "names": list(trace.names),
        "meta": trace.meta,
    }


def _trace(header: dict[str, Any], arrays: dict[str, Any], prefix: str = "") -> Trace:
    names, meta = tuple(_entry(header, "names", list)), _entry(header, "meta", dict)
    calls = _rows(arrays, _CALLS, prefix) if header["version"] > 1 else {}
    return Trace(_entry(header, "chunk_bytes", int), names, **_rows(arrays, _TRACE, prefix), **calls, meta=meta)


def _remaking(header: dict[str, Any], arrays: dict[str, Any]) -> Remaking | None:
    if "again.at" not in arrays:
        return None
    origin = _trace(header | {"names": _entry(header, "origin_names", list)}, arrays, "origin.")
    return Remaking(origin, **_rows(arrays, _REMAKING, "again."))


def _plan(header: dict[str, Any], arrays: dict[str, Any]) -> Plan:
    return Plan(
        trace=_trace(header, arrays, "trace."),
        device=Device(**_fields(header, Device, "device")),
        reservation=_entry(header, "reservation", int),
        prediction=Prediction(**_fields(header, Prediction, "prediction")),
        switches=_entry(header, "switches", dict),
        remaking=_remaking(header, arrays),
        **_rows(arrays, _PLAN),
    )


def _arrays(of: Trace | Plan | Remaking, prefix: str, names: tuple[str, ...]) -> dict[str, Ints]:
    return {prefix + name: getattr(of, name) for name in names}


def save_trace(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Write a trace to the file `path` (.npz), which appears whole or not at all.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    _write(path, _header("trace", trace), _arrays(trace, "", (*_TRACE, *_CALLS)))


def load_trace(path: str | os.PathLike[str]) -> Trace:
    """Read a trace from the file `path`.

    Raises
    ------
    FormatError
        If it is missing, damaged, something else, or from a newer version.
    """
    with _reading(path):
        return _trace(*_read(path, "trace"))


def save_plan(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Write a plan together with its trace to the file `path` (.npz), which appears whole or not at all.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    header = _header("plan", plan.trace)
    header["device"] = {name: getattr(plan.device, name) for name in Device.__slots__}
    header["prediction"] = {name: getattr(plan.prediction, name) for name in Prediction.__slots__}
    header["reservation"], header["switches"] = plan.reservation, plan.switches
    arrays = _arrays(plan.trace, "trace.", (*_TRACE, *_CALLS)) | _arrays(plan, "", _PLAN)
    if plan.remaking is not None:
        header["origin_names"] = list(plan.remaking.origin.names)
        arrays |= _arrays(plan.remaking, "again.", _REMAKING)
        arrays |= _arrays(plan.remaking.origin, "origin.", (*_TRACE, *_CALLS))
    _write(path, header, arrays)


def load_plan(path: str | os.PathLike[str]) -> Plan:
    """Read a plan from the file `path`.

    Raises
    ------
    FormatError
        As :func:`load_trace`.
    """
    with _reading(path):
        return _plan(*_read(path, "plan"))


def load(path: str | os.PathLike[str]) -> Trace | Plan:
    """Read whichever of the two it is.

    Raises
    ------
    FormatError
        As :func:`load_trace`.
    """
    with _reading(path):
        header, arrays = _read(path, *_KINDS)
        return _trace(header, arrays) if header["format"] == "trace" else _plan(header, arrays)
