"""What doctor says of the place a GPU stands in."""

from __future__ import annotations

import pytest

from vtensor.devices.surroundings import look_around

PLAIN = {"count": 1, "release": "6.8.0-45-generic", "libraries": "/usr/lib/libcuda.so.1\n"}


@pytest.mark.parametrize(
    ("name", "differs", "found"),
    [
        ("NVIDIA GeForce RTX 3060 Laptop GPU", {}, []),
        ("NVIDIA A100-SXM4-40GB", {}, []),
        ("NVIDIA A100-PCIE-40GB", {}, []),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", {}, ["gpu instance"]),
        ("GRID T4-8Q", {}, ["virtual gpu"]),
        ("NVIDIA A16-4C", {}, ["virtual gpu"]),
        ("NVIDIA GeForce GTX 1650", {"release": "5.15.153.1-microsoft-standard-WSL2"}, ["wsl"]),
        ("NVIDIA H100 80GB HBM3", {"count": 8}, ["several gpus"]),
        ("Tesla T4", {"libraries": "/opt/compute-sanitizer/libsanitizer-collection.so\n"}, ["sanitizer"]),
    ],
)
def test_what_kind_of_place_it_is(name: str, differs: dict[str, object], found: list[str]) -> None:
    around = list(look_around(name, **{**PLAIN, **differs}))  # type: ignore[arg-type]
    assert [what for what, _ in around] == found
    assert all(len(text) > 40 for _, text in around)


def test_here() -> None:
    assert [what for what, _ in look_around("Tesla T4", 1)] in ([], ["wsl"])
