"""What vtensor says says that it is vtensor who says it."""

from __future__ import annotations

import os
import subprocess

import pytest

from ..warm import python

SAYS = "import logging; from vtensor.logs import log, set_log_level; {}; log.warning('%d of %s', 5, 'them')"


@pytest.mark.parametrize(
    ("set_up", "level", "said"),
    [
        ("pass", None, "vtensor: 5 of them"),
        ("set_log_level()", "info", "vtensor: 5 of them"),
        ("logging.basicConfig()", None, "WARNING:vtensor:5 of them"),
        ("logging.basicConfig(); set_log_level()", "info", "WARNING:vtensor:5 of them"),
        ("set_log_level(); logging.basicConfig()", "info", "WARNING:vtensor:5 of them"),
        ("set_log_level()", "loud", "vtensor: VTENSOR_LOG=loud is no level: debug, info, warning or error"),
    ],
)
def test_a_warning_names_vtensor_once(set_up: str, level: str | None, said: str) -> None:
    environ = {name: text for name, text in os.environ.items() if name != "VTENSOR_LOG"}
    done = subprocess.run(
        [python(), "-c", SAYS.format(set_up)],
        env=environ | ({"VTENSOR_LOG": level} if level else {}), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stderr.splitlines() == [said, "vtensor: 5 of them"][: 1 + (level == "loud")]
