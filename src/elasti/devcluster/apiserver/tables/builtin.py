"""The columns of Kubernetes' own kinds, as kubectl's users know them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from elasti.devcluster.apiserver.tables.pods import POD_COLUMNS, pod_cells

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Mapping

    from elasti.devcluster.apiserver.resources import Column
    from kubeloop.objects.meta import JsonObject

    Cells = Callable[[JsonObject, dt.datetime], list[Any]]

PRINTERS: Mapping[str, tuple[tuple[Column, ...], Cells]] = {"Pod": (POD_COLUMNS, pod_cells)}
