"""Which targets' pods a Service leads to: the labels of their pods, filed.

A Service that comes, goes or changes its selector concerns not only the ElastiServices that name it, but
all whose pods it selects, or selected. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kubeloop.controller.reconcile import Request


class PodLabels:
    """The labels of the pods of every ElastiService's target. One writer: the leader's reconciler."""

    def __init__(self) -> None:
        self._labels: dict[Request, Mapping[str, str]] = {}
        self._having: dict[tuple[str, str, str], set[Request]] = {}

    def put(self, request: Request, labels: Mapping[str, str]) -> None:
        """Note the labels that a target gives its pods now."""
        if self._labels.get(request) == labels:
            return
        self.forget(request)
        self._labels[request] = labels
        for key, value in labels.items():
            self._having.setdefault((request.namespace, key, value), set()).add(request)

    def forget(self, request: Request) -> None:
        """The ElastiService is gone; safe where it is not known."""
        for key, value in self._labels.pop(request, {}).items():
            pair = request.namespace, key, value
            having = self._having[pair]
            having.discard(request)
            if not having:
                del self._having[pair]

    def selected_by(self, namespace: str, selector: Mapping[str, str]) -> Iterator[Request]:
        """Iterate over the ElastiServices whose pods a selector finds; an empty one finds none."""
        if not selector:
            return
        pairs = ((namespace, key, value) for key, value in selector.items())
        fewest = min((self._having.get(pair, set()) for pair in pairs), key=len)
        for request in sorted(fewest):
            if selector.items() <= self._labels[request].items():
                yield request
