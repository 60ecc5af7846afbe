"""What every test relies on: a session that is off before and after, and an engine that is whole and leaks nothing."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from typing import Any, TextIO

import hypothesis
import pytest
import torch

# Hundreds of sessions would ask a process for a plan each, while tests take all cores (test_helper.py does).
os.environ.setdefault("VTENSOR_ANALYSIS", "here")

import vtensor
from vtensor import native
from vtensor.hooks.strict import is_strict
from vtensor.session import lifecycle, watchdog
from vtensor.settings.config import Config

hypothesis.settings.register_profile(
    "default", max_examples=40, derandomize=True, deadline=None, suppress_health_check=list(hypothesis.HealthCheck)
)
hypothesis.settings.register_profile(
    "long", max_examples=2000, deadline=None, suppress_health_check=list(hypothesis.HealthCheck), print_blob=True
)
hypothesis.settings.load_profile(os.environ.get("VTENSOR_HYPOTHESIS", "default"))

PAGE = 4096
_stderr: TextIO | None = None  # as it was before tests are captured


def pytest_configure() -> None:
    global _stderr
    _stderr = os.fdopen(os.dup(2), "w")


@pytest.fixture(scope="session")
def core() -> Any:
    return native.load()


@pytest.fixture(autouse=True, scope="session")
def what_is_there_stays() -> None:
    """What imports left is looked at once, not by each collection of garbage (0.1 s); so is what each test leaves."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def session_is_off() -> Iterator[None]:
    vtensor.disable()
    threads = torch.get_num_threads()
    if native.load.cache_info().currsize > 0:  # not for tests that need no core
        watchdog.start(native.load(), file=_stderr)
    yield
    if vtensor.is_enabled():
        assert native.load().validate() == ""
    vtensor.disable()
    torch.set_num_threads(threads)
    gc.collect()
    gc.freeze()


@pytest.fixture(params=[False, True], ids=["beyond the budget", "in place"])
def late(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    """Sessions begin on an ordered device whose copies happen late; whether it uses memory of the host in place."""
    module = native.load()
    places = bool(request.param)

    def start(config: Config) -> None:
        seed = config.budget_chunks  # another order for each budget
        settings = (config.budget_chunks, config.chunk, config.host, config.policy, config.min_size)
        module.parts.start_late(*settings, seed, places, config.leaving, is_strict())

    monkeypatch.setattr(lifecycle, "_start", start)
    yield places
    assert module.parts.late_complaints() == []


@pytest.fixture
def everything() -> Callable[..., None]:
    """Enable with chunks of one page and every tensor managed: the smallest program swaps."""

    def enable(budget: int, **options: Any) -> None:
        vtensor.enable(budget, **{"chunk": PAGE, "min_size": 1, "host": 1 << 30, **options})

    return enable
