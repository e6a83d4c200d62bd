"""A whole operator from a Struct and a function.

    websites = Operator(Website, "example.com/v1/websites", owns=["v1/configmaps"])

    @websites.reconcile
    async def publish(site: Website, ctx: Context[Website]) -> None:
        await ctx.apply(page_of(site))
        await ctx.report(Status(page=site.metadata.name), Condition("Ready", "True", "Published"))

    run(websites)

`run` is a program: it connects, creates the definitions, elects a leader, fills caches, serves health
and metrics, reconciles, and stops on a signal. It is put together from public parts, and each of them
can be used without the ones above it: `make_manager` leaves connection and signals to you,
`Operator.controller` leaves the manager to you too, and below that are `Controller`, `Finalizers`,
`EventRecorder` and the rest of `kubeloop.controller`. Your reconcile function stays the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubeloop._lazy import homes_of, lazy_attributes

if TYPE_CHECKING:
    from kubeloop.operator.operator import Context as Context
    from kubeloop.operator.operator import Operator as Operator
    from kubeloop.operator.program import make_manager as make_manager
    from kubeloop.operator.program import run as run
    from kubeloop.operator.program import running as running

_EXPORTS = homes_of(
    {
        "kubeloop.operator.operator": "Context Operator",
        "kubeloop.operator.program": "make_manager run running",
    }
)

if not TYPE_CHECKING:
    __getattr__ = lazy_attributes(__name__, _EXPORTS)
