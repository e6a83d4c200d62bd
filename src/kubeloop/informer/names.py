"""Names that must not be used twice, because metrics of both would become one."""

from __future__ import annotations


class InformerNames:
    """The names in use; a program has one of these and passes it to every factory."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def claim(self, name: str) -> None:
        """Take a name. Raises ValueError where it is taken, or empty."""
        if not name:
            raise ValueError("a factory whose name must be unique needs a name")
        if name in self._taken:
            raise ValueError(f"informer name {name!r} is in use; choose another")
        self._taken.add(name)

    def release(self, name: str) -> None:
        """Give a name back; safe to repeat."""
        self._taken.discard(name)
