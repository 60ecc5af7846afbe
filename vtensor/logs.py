"""What vtensor says of itself: one logger, to standard error where ``VTENSOR_LOG`` asks for it.

Covers: ``VTENSOR_LOG=info`` and ``debug``; warnings of a program that sets up no logging. Leaves: what is said, to
whoever says it.
"""

from __future__ import annotations

import logging
import os

__all__ = ["log", "set_log_level"]

log = logging.getLogger("vtensor")


def _named(record: logging.LogRecord) -> bool:
    """Python's last resort, which prints warnings where no logging is set up, does not say whose they are."""
    if not log.hasHandlers():
        record.msg = f"vtensor: {record.msg}"
    return True


log.addFilter(_named)


def set_log_level() -> None:
    """Do what ``VTENSOR_LOG`` says; unset, the program's own settings of the logger ``vtensor`` hold."""
    asked = os.environ.get("VTENSOR_LOG", "")
    level = logging.getLevelNamesMapping().get(asked.upper())
    if level is None:
        if asked:
            log.warning("VTENSOR_LOG=%s is no level: debug, info, warning or error", asked)
        return
    log.setLevel(level)
    if not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("vtensor: %(message)s"))
        log.addHandler(handler)
