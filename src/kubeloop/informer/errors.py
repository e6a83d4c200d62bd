"""What an informer's error handler is told; the cause is the client's own error."""

from __future__ import annotations


class ReflectorError(Exception):
    """A request of a reflector failed; it will be repeated."""

    _operation = "use"

    def __init__(self, name: str, cause: Exception) -> None:
        super().__init__(f"cannot {self._operation} {name}: {cause}")
        self.__cause__ = cause


class ListFailed(ReflectorError):
    """A list failed, or an object in it could not be taken in."""

    _operation = "list"


class WatchFailed(ReflectorError):
    """A watch could not be opened."""

    _operation = "watch"
