"""The CUDA device where there is no GPU: its sources compile, and people are told what is missing.

The engine over an ordered device and over the CUDA driver is tested natively (tests/native/ordered_programs.cpp, by
``make sanitize``) and broken on purpose (test_mutations.py). What needs a GPU is in ``make gpu-check``.
"""

from __future__ import annotations

import re
import sysconfig
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import vtensor
from vtensor import native
from vtensor.devices.gpu import fit
from vtensor.hooks import doors
from vtensor.hooks.doors import open_doors
from vtensor.hooks.patches import restore
from vtensor.native import chunk_ops, cuda_headers
from vtensor.settings.config import make_config
from vtensor.settings.options import Options

from .cuda_headers import check, check_release, compiles

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: make gpu-check says more")


def test_the_sources_compile_against_the_installed_torch() -> None:
    check(native.torch_include()[0])


@pytest.mark.long
def test_each_source_includes_what_it_uses() -> None:
    """With 16 cores a folder is compiled in four parts: there a file was refused that had always come after another."""
    check(native.torch_include()[0], each=True)


@pytest.mark.long
@pytest.mark.parametrize("version", ["2.11.0", "2.12.0", "2.13.0", "2.14.1", "2.15.0"])
def test_the_sources_compile_against_every_torch_that_may_be_there(version: str) -> None:
    """2.12 lacks what 2.13 brought, and already has one that must be there: no build with it succeeded."""
    check_release(version)


def test_headers_are_found() -> None:
    found = cuda_headers.cuda_include()
    assert found is not None
    assert (found / "cuda_runtime_api.h").is_file()


def test_no_toolkit_is_needed(tmp_path: Path) -> None:
    """pip's torch brings CUDA's headers, but not those in crt/ that they include: there each build failed."""
    found = cuda_headers.cuda_include()
    assert found is not None
    for path in found.iterdir():
        if path.name != "crt":
            (tmp_path / path.name).symlink_to(path)
    text = "#include <cuda.h>\n#include <cuda_runtime.h>\nstatic_assert(alignof(float4) == 16);\n"
    compiles(text, [f"-isystem{tmp_path}"])


def test_the_driver_compiles_with_the_headers_of_cuda_12() -> None:
    """Of the oldest that torch 2.11 comes with; one name they lack was enough to make each build there fail."""
    oldest = Path(sysconfig.get_path("purelib")) / "nvidia/cuda_runtime/include"
    sources = sorted((native.sources_dir() / "cuda").glob("*.cpp"))
    text = "#include <cuda.h>\nstatic_assert(CUDA_VERSION == 12060);\n" + native.unit_text(sources)
    compiles(text, [f"-isystem{oldest}"])


def test_headers_are_those_of_torchs_own_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever CUDA_HOME says; where there are none of its version, the first there are."""
    toolkit = tmp_path / "include"
    toolkit.mkdir()
    (toolkit / "cuda.h").write_text("#define CUDA_VERSION 14000\n")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert cuda_headers.cuda_include("14.0") != toolkit  # half of a toolkit
    (toolkit / "cuda_runtime_api.h").touch()
    chosen = {cuda: cuda_headers.cuda_include(cuda) for cuda in ("12.8", "13.0", "14.1", "15.0", None)}
    versions = {
        cuda: re.findall(r"#define CUDA_VERSION (\d\d)", (path / "cuda.h").read_text())
        for cuda, path in chosen.items()
        if path is not None
    }
    assert versions == {"12.8": ["12"], "13.0": ["13"], "14.1": ["14"], "15.0": ["14"], None: ["14"]}


@pytest.mark.parametrize(("cuda", "package"), [("12.8", "nvidia-cuda-runtime-cu12"), ("13.0", "nvidia-cuda-runtime'")])
def test_where_headers_come_from_is_said(cuda: str, package: str) -> None:
    assert package in cuda_headers.how_to_get_them(cuda)


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


@pytest.mark.parametrize(
    ("current", "rank", "taken"), [(0, "2", 2), (0, None, 0), (0, "0", 0), (0, "7", 0), (3, "1", 3)]
)
def test_a_process_of_torchrun_manages_the_gpu_of_its_rank(
    monkeypatch: pytest.MonkeyPatch, current: int, rank: str | None, taken: int
) -> None:
    """Unless it has chosen another, or sees fewer (each may be given one of its own to see)."""
    now = [current]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: now[0])
    monkeypatch.setattr(torch.cuda, "set_device", lambda chosen: now.__setitem__(0, chosen))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=4 << 30))
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("LOCAL_RANK", rank)
    assert make_config("1GiB", Options(device="cuda")).ordinal == taken
    assert now == [taken]


@pytest.mark.parametrize(
    ("module", "saves"),
    [
        ("torch.serialization", True),
        ("safetensors.torch", True),
        ("transformers", True),
        ("transformers_kernels", False),
    ],
)
def test_who_saves_is_told_by_whole_names(module: str, saves: bool) -> None:
    """Another package may hand addresses to kernels."""
    assert doors._is_of(doors._COMPARE_STORAGES, module) == saves


def test_saving_gives_no_address_away_on_a_gpu(tmp_path: Path) -> None:
    """torch.save asks for the address of each storage: what is saved would stay on the device for good."""
    given: list[int] = []
    core = SimpleNamespace(
        export_address=given.append,
        ordered=lambda: False,
        kept=lambda: 0,
        telling_table=lambda table: table,
        note_pythons_handler=lambda: None,
    )
    tensor = torch.ones(1000)
    try:
        open_doors(core, "cuda")
        torch.save({"weight": tensor}, tmp_path / "saved.pt")
        assert given == []
        assert tensor.untyped_storage().data_ptr() == tensor.data_ptr()
        assert len(given) == 2
        torch.utils.dlpack.to_dlpack(tensor)
        assert len(set(given)) == 1 and len(given) > 2
    finally:
        restore()


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
    fitted = fit(module, make_config("64MiB"))
    assert fitted.recompute == "only"
    assert fitted.leaving == "drop"
    assert "Orin shares one memory" in caplog.text
    with pytest.raises(vtensor.UnsupportedDeviceError, match="Leave recompute= out"):
        fit(module, make_config("64MiB", Options(recompute="never")))
    monkeypatch.setenv("VTENSOR_INTEGRATED", "1")
    assert fit(module, make_config("64MiB", Options(recompute="never"))).leaving == "copy"
