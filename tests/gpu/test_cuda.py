"""The CUDA device where there is no GPU: its sources compile, and people are told what is missing.

The engine over an ordered device and over the CUDA driver is tested natively (tests/native/ordered_programs.cpp, by
``make sanitize``) and broken on purpose (test_mutations.py). What needs a GPU is in ``make gpu-check``.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import vtensor
from vtensor import chunk_ops, cuda_headers, native
from vtensor.config import make_config
from vtensor.gpu import fit_gpu

from .cuda_headers import check

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: make gpu-check says more")


def test_the_sources_compile_against_the_installed_torch() -> None:
    check(native.torch_include()[0])


def test_headers_are_found() -> None:
    found = cuda_headers.cuda_include()
    assert found is not None
    assert (found / "cuda_runtime_api.h").is_file()


@pytest.mark.parametrize("architecture", ["compute_75", "compute_90"])
def test_the_kernels_compile(architecture: str) -> None:
    nvrtc = pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="CuPy is not installed")
    program = nvrtc.createProgram(chunk_ops.source(), "chunk_ops.cu", (), ())
    try:
        nvrtc.compileProgram(program, (f"--gpu-architecture={architecture}", "-std=c++17"))
    except nvrtc.NVRTCError:
        pytest.fail(nvrtc.getProgramLog(program))
    ptx = nvrtc.getPTX(program).decode()
    assert all(f".entry {name}(" in ptx for name in chunk_ops.NAMES)


@without_gpu
def test_no_gpu_is_said_in_words() -> None:
    with pytest.raises(vtensor.UnsupportedDeviceError, match="no GPU"):
        vtensor.enable("64MiB", device="cuda")
    assert not vtensor.is_enabled()


class OneMemory:
    """A core that finds a GPU whose memory is the processor's."""

    InvalidUse = RuntimeError

    @staticmethod
    def probe_cuda(_ordinal: int) -> dict[str, Any]:
        return {"name": "Orin", "integrated": True, "virtual_memory": True, "host_in_place": False}


def test_where_there_is_one_memory_nothing_is_copied(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    module: Any = OneMemory
    fitted = fit_gpu(module, make_config("64MiB"))
    assert fitted.recompute == "only"
    assert fitted.leaving == "drop"
    assert "Orin shares one memory" in caplog.text
    with pytest.raises(vtensor.UnsupportedDeviceError, match="Leave recompute= out"):
        fit_gpu(module, make_config("64MiB", recompute="never"))
    monkeypatch.setenv("VTENSOR_INTEGRATED", "1")
    assert fit_gpu(module, make_config("64MiB", recompute="never")).leaving == "copy"
