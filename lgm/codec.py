"""Traces and plans as ``.npz`` files: compact, versioned, without pickle, exact both ways.

Covers: writing, reading, and an error that says what is wrong with a file that cannot be read.
Leaves: whether the content makes sense (``model`` checks indices, ``validate`` checks plans).

Layout, version 1: every array of :class:`lgm.model.Trace` under its own name, delta-free int64 stored in the smallest
type that holds it; ``header`` is JSON in UTF-8 (``format``, ``version``, and what is not an array). A plan file holds
its trace too, with the prefix ``trace.``, so that one file suffices to run it.
"""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from .model import Device, Ints, LgmError, Plan, Prediction, Trace

__all__ = ["VERSION", "FormatError", "load_plan", "load_trace", "save_plan", "save_trace"]

VERSION = 1
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


class FormatError(LgmError):
    """A file that is no trace or plan, is damaged, or was written by a newer version."""


def _small(values: Ints) -> Any:
    for kind in (np.int8, np.int16, np.int32):
        limits = np.iinfo(kind)
        if not len(values) or (values.min() >= limits.min and values.max() <= limits.max):
            return values.astype(kind)
    return values


def _write(path: str | os.PathLike[str], header: dict[str, Any], arrays: dict[str, Ints]) -> None:
    packed = {name: _small(values) for name, values in arrays.items()}
    packed["header"] = np.frombuffer(json.dumps(header, sort_keys=True).encode(), dtype=np.uint8)
    target = Path(path)
    scratch = target.with_name(f"{target.name}.{os.getpid()}.part")  # never half a file under the real name
    try:
        with scratch.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **packed)
        scratch.replace(target)
    finally:
        scratch.unlink(missing_ok=True)


def _read(path: str | os.PathLike[str], *kinds: str) -> tuple[dict[str, Any], dict[str, Any]]:
    source = Path(path)
    if not source.is_file():
        raise FormatError(f"{source}: there is no such file")
    try:
        with np.load(source, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        header = json.loads(arrays.pop("header").tobytes().decode())
        found, version = header["format"], int(header["version"])
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        EOFError,
        AttributeError,
        zipfile.BadZipFile,
        zipfile.LargeZipFile,
    ) as e:
        raise FormatError(f"{source}: not a trace or plan of vtensor, or damaged ({type(e).__name__}: {e})") from None
    except Exception as e:  # zlib.error and whatever else a damaged archive provokes
        raise FormatError(f"{source}: damaged ({type(e).__name__}: {e})") from None
    if version > VERSION:
        raise FormatError(f"{source}: written in format {version}; this version reads up to {VERSION}. Update vtensor")
    if found not in kinds:
        raise FormatError(f"{source}: this is a {found}, not a {' or a '.join(kinds)}")
    return header, arrays


def _header(kind: str, trace: Trace) -> dict[str, Any]:
    return {
        "format": kind,
        "version": VERSION,
        "chunk_bytes": trace.chunk_bytes,
        "names": list(trace.names),
        "meta": trace.meta,
    }


def _trace(source: object, header: dict[str, Any], arrays: dict[str, Any], prefix: str) -> Trace:
    try:
        fields = {name: arrays[prefix + name].astype(np.int64) for name in _TRACE}
        return Trace(header["chunk_bytes"], tuple(header["names"]), **fields, meta=header["meta"])
    except (KeyError, TypeError, ValueError, LgmError) as error:
        raise FormatError(f"{source}: damaged ({error})") from None


def save_trace(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Write a trace. The file appears whole or not at all."""
    _write(path, _header("trace", trace), {name: getattr(trace, name) for name in _TRACE})


def load_trace(path: str | os.PathLike[str]) -> Trace:
    """Read a trace.

    Raises
    ------
    FormatError
        If it is missing, damaged, something else, or from a newer version.
    """
    header, arrays = _read(path, "trace")
    return _trace(path, header, arrays, "")


def save_plan(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Write a plan together with its trace."""
    header = _header("plan", plan.trace)
    header["device"] = {name: getattr(plan.device, name) for name in Device.__slots__}
    header["prediction"] = {name: getattr(plan.prediction, name) for name in Prediction.__slots__}
    header["reservation"], header["switches"] = plan.reservation, plan.switches
    arrays = {f"trace.{name}": getattr(plan.trace, name) for name in _TRACE}
    _write(path, header, arrays | {name: getattr(plan, name) for name in _PLAN})


def load_plan(path: str | os.PathLike[str]) -> Plan:
    """Read a plan.

    Raises
    ------
    FormatError
        As :func:`load_trace`.
    """
    return _plan(path, *_read(path, "plan"))


def load(path: str | os.PathLike[str]) -> Trace | Plan:
    """Read whichever of the two it is.

    Raises
    ------
    FormatError
        As :func:`load_trace`.
    """
    header, arrays = _read(path, "trace", "plan")
    return _trace(path, header, arrays, "") if header["format"] == "trace" else _plan(path, header, arrays)


def _plan(path: object, header: dict[str, Any], arrays: dict[str, Any]) -> Plan:
    trace = _trace(path, header, arrays, "trace.")
    try:
        return Plan(
            trace=trace,
            device=Device(**header["device"]),
            reservation=int(header["reservation"]),
            prediction=Prediction(**header["prediction"]),
            switches=dict(header["switches"]),
            **{name: arrays[name].astype(np.int64) for name in _PLAN},
        )
    except (KeyError, TypeError, ValueError, LgmError) as error:
        raise FormatError(f"{path}: damaged ({error})") from None
