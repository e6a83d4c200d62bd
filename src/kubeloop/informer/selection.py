"""Which slice of a resource an informer is about, and when two want the same one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from kubeloop.objects.fields import FieldSelector
from kubeloop.objects.selectors import LabelSelector

if TYPE_CHECKING:
    from kubeloop.informer.intake import Transform
    from kubeloop.objects.fields import FieldSelectorLike
    from kubeloop.objects.gvk import GroupVersionResource
    from kubeloop.objects.selectors import SelectorLike


@dataclasses.dataclass(frozen=True, slots=True)
class Selection:
    """The selectors of a list and of its watch, in normal form."""

    label_selector: str = ""
    field_selector: str = ""

    @classmethod
    def parse(cls, labels: SelectorLike, fields: FieldSelectorLike) -> Selection:
        """Read both. Raises SelectorError; ValueError for a label selector that matches nothing."""
        parsed = LabelSelector.parse(labels)
        if parsed.matches_nothing:
            raise ValueError(
                "the label selector matches nothing: an informer would never see an object"
            )
        return cls(str(parsed), str(FieldSelector.parse(fields)))


Tweak: TypeAlias = Callable[[Selection], Selection]
"""Changes the selection of every informer of a factory; it has no say in versions or paging."""


@dataclasses.dataclass(frozen=True, slots=True)
class InformerKey:
    """What makes two informers the same: resource, slice, and what is kept of each object.

    A transform counts by identity: pass the same function to share a watch.
    """

    gvr: GroupVersionResource
    namespace: str
    selection: Selection
    kind: type[Any]
    transform: Transform | None

    def __str__(self) -> str:
        parts = [str(self.gvr)]
        if self.namespace:
            parts.append(f"in {self.namespace}")
        parts += filter(None, (self.selection.label_selector, self.selection.field_selector))
        return " ".join(parts)
