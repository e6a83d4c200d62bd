"""Acting as another user: the headers by which an API server is asked for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kubeloop.client.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

# What an HTTP header's name may contain, without '%', which starts an escape.
_NAME_CHARS = frozenset(
    "!#$&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Impersonation:
    """The user to act as. The real user needs the RBAC verb `impersonate` for each part."""

    user: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what would break out of a header line."""
        for name, value in self.headers():
            if any(ord(char) < 0x20 or ord(char) == 0x7F for char in value):
                raise ConfigError(f"{name} {value!r} contains a control character; remove it")

    def headers(self) -> tuple[tuple[str, str], ...]:
        """Return the header lines in order; a name repeats for each of its values."""
        lines = [("Impersonate-User", self.user)]
        if self.uid:
            lines.append(("Impersonate-Uid", self.uid))
        lines += [("Impersonate-Group", group) for group in self.groups]
        for key, values in self.extra.items():
            name = f"Impersonate-Extra-{_escape(key)}"
            lines += [(name, value) for value in values]
        return tuple(lines)


def _escape(key: str) -> str:
    """Percent-encode what a header's name cannot carry; the server decodes it."""
    return "".join(
        char if char in _NAME_CHARS else "".join(f"%{byte:02X}" for byte in char.encode())
        for char in key
    )
