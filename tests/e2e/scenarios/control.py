"""The run that must lose: without our slice at zero there is nobody to connect to."""

from __future__ import annotations

from elasti.api.names import resolver_slice_name
from tests.e2e import bundle
from tests.e2e.play import Play
from tests.e2e.stage import SLICES


async def slice_removed_at_zero(play: Play) -> None:
    """The control run: the operator is away and the resolver's slice is removed at zero."""
    app = await play.sleeping_app()
    probe = await play.load(app, rate=0)
    operators = play.stage.installed.operators if play.stage.installed else 1
    await play.stage.scale(bundle.NAMESPACE, bundle.OPERATOR, 0)
    await play.stage.rolled_out(bundle.NAMESPACE, bundle.OPERATOR)
    try:
        slices = play.stage.client.resource(SLICES, namespace=play.namespace)
        await slices.delete(resolver_slice_name(app.name))
        await play.observer.until("slice", app.name, "removed")
        await probe.rate(play.length.rate)
        await play.flow(play.length.load / 4)
        await probe.rate(0)
    finally:
        await play.stage.scale(bundle.NAMESPACE, bundle.OPERATOR, operators)
        await play.stage.rolled_out(bundle.NAMESPACE, bundle.OPERATOR)
