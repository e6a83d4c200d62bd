"""What the programs log during a block, as dictionaries."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from elasti.logger import keys_of


class _Collector(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        kind = {"event": record.getMessage(), "log_level": record.levelname.lower()}
        self.lines.append({**keys_of(record), **kind})


@contextlib.contextmanager
def capture_logs() -> Iterator[list[dict[str, Any]]]:
    """Give the lines of Elasti's own loggers, of every level, with what is bound."""
    collector, logger = _Collector(), logging.getLogger("elasti")
    level = logger.level
    logger.addHandler(collector)
    logger.setLevel(logging.DEBUG)
    try:
        yield collector.lines
    finally:
        logger.removeHandler(collector)
        logger.setLevel(level)
