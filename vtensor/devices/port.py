"""What a session wants of its device, whichever that is: as ``kernels/device/driver.h`` is the core's port to hardware.

Covers: which module answers for which device. Leaves: the answers (``cpu``, ``gpu``), when they are asked for
(``session.lifecycle``).
"""

from __future__ import annotations

from typing import Literal, Protocol

from ..native.core import Core
from ..settings.config import Config
from . import cpu, gpu

__all__ = ["Port", "port_of"]


class Port(Protocol):
    """The functions of such a module; `core` is the native core."""

    def fit(self, core: Core, config: Config) -> Config:
        """Settings that suit the device; raises UnsupportedDeviceError where managing its memory cannot work."""

    def start(self, core: Core, config: Config) -> None:
        """Start the core there; :meth:`stop` undoes it, also in part."""

    def resize(self, core: Core, config: Config) -> None:
        """Follow a budget that the core has taken already."""

    def stop(self, core: Core) -> None:
        """Stop the core; may be called again where it was interrupted, and where nothing was started.

        Raises
        ------
        torch.OutOfMemoryError
            If live tensors in the host store cannot come back; then nothing has changed.
        """


_PORTS: dict[str, Port] = {"cpu": cpu, "cuda": gpu}


def port_of(device: Literal["cpu", "cuda"]) -> Port:
    return _PORTS[device]
