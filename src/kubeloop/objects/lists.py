"""One page of a list, decoded."""

from __future__ import annotations

import dataclasses
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Objects of one list response; an empty `continue_token` means that no page follows.

    `remaining` is the server's estimate of what follows, None where it gives none.
    """

    items: list[T]
    resource_version: str
    continue_token: str = ""
    remaining: int | None = None
