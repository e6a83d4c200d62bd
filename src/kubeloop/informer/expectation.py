"""What the objects of a watch are expected to be; anything else is a mistake of the server's.

A Table is never expected: it is what kubectl asks for, and holds rows, not objects.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from kubeloop.objects.gvk import GroupVersionKind


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """The representation, and the kind where it is known; None accepts any."""

    representation: type[Any] | None = None
    gvk: GroupVersionKind | None = None

    def checker(self) -> Callable[[Any], str]:
        """Return `mismatch`, or something cheaper for objects that cannot tell their kind."""
        kind = self.representation
        if kind is None or issubclass(kind, dict) or hasattr(kind, "kind"):
            return self.mismatch
        return lambda obj: "" if isinstance(obj, kind) else self.mismatch(obj)

    def mismatch(self, obj: Any) -> str:
        """Say what is wrong with an object, "" where nothing is.

        An object that does not tell its kind, as slim Structs do not, is taken for the right one.
        """
        if self.representation is not None and not isinstance(obj, self.representation):
            return f"expected a {self.representation.__name__}, got a {type(obj).__name__}"
        api_version, kind = _told_type(obj)
        if kind == "Table":
            return "a Table is no object"
        if self.gvk is None or not kind or (api_version, kind) == _wanted(self.gvk):
            return ""
        return f"expected {self.gvk}, got {api_version}/{kind}"


def _wanted(gvk: GroupVersionKind) -> tuple[str, str]:
    return gvk.api_version, gvk.kind


def _told_type(obj: Any) -> tuple[str, str]:
    if isinstance(obj, dict):
        return obj.get("apiVersion") or "", obj.get("kind") or ""
    return getattr(obj, "api_version", ""), getattr(obj, "kind", "")
