"""Warnings that a server sends along with its answer: deprecated versions, unknown fields.

They come as `Warning: 299 - "text"` headers (RFC 7234), with every answer again. Each text is
logged once per client, and is the record's attribute `warning`, for those who show it to people.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_log = logging.getLogger("kubeloop.client.warnings")
_WARNING = re.compile(r'\s*(\d{3})\s+(?:"(?:[^"\\]|\\.)*"|\S+)\s+"((?:[^"\\]|\\.)*)"[^,]*(?:,|$)')
_ESCAPE = re.compile(r"\\(.)")
_REMEMBERED = 1000


def parse_warnings(value: str) -> list[str]:
    """Return the texts of code 299 in one header; what is not well formed is skipped."""
    return [_ESCAPE.sub(r"\1", match[2]) for match in _WARNING.finditer(value) if match[1] == "299"]


class WarningLog:
    """Logs each warning the first time that it comes."""

    def __init__(self, *, logger: logging.Logger = _log) -> None:
        self._log = logger
        self._seen: set[str] = set()

    def note(self, headers: Iterable[str], *, request: str) -> None:
        """Take the Warning headers of one answer."""
        for header in headers:
            for text in parse_warnings(header):
                self._once(text, request)

    def _once(self, text: str, request: str) -> None:
        if text in self._seen or len(self._seen) >= _REMEMBERED:
            return
        self._seen.add(text)
        self._log.warning("API server warns about %s: %s", request, text, extra={"warning": text})
