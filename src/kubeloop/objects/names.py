"""Keys: an object's identity inside one resource, `namespace/name` or `name`."""

from __future__ import annotations

from typing import NamedTuple, NewType

Key = NewType("Key", str)


class ObjectName(NamedTuple):
    """A key taken apart; cluster-scoped objects have the empty namespace."""

    namespace: str
    name: str

    @property
    def key(self) -> Key:
        """The joined form."""
        return make_key(self.namespace, self.name)

    def __str__(self) -> str:
        return self.key


def make_key(namespace: str, name: str) -> Key:
    """Join a namespace (may be empty) and a name."""
    return Key(f"{namespace}/{name}" if namespace else name)


def split_key(key: str) -> ObjectName:
    """Take a key apart; raises ValueError where there is more than one slash or no name."""
    parts = key.split("/")
    if len(parts) > 2 or not parts[-1]:
        raise ValueError(f"key {key!r} is not 'name' or 'namespace/name'")
    return ObjectName("", parts[0]) if len(parts) == 1 else ObjectName(parts[0], parts[1])
