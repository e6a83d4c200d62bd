"""The run that must lose: without our slice at zero there is nobody to connect to."""

from __future__ import annotations

from elasti.api.names import resolver_slice_name
from tests.e2e import bundle
from tests.e2e.environment import SLICES
from tests.e2e.trial import Trial


async def slice_removed_at_zero(trial: Trial) -> None:
    """The control run: the operator is away and the resolver's slice is removed at zero."""
    app = await trial.sleeping_app()
    probe = await trial.load(app, rate=0)
    operators = trial.environment.installed.operators if trial.environment.installed else 1
    await trial.environment.scale(bundle.NAMESPACE, bundle.OPERATOR, 0)
    await trial.environment.rolled_out(bundle.NAMESPACE, bundle.OPERATOR)
    try:
        slices = trial.environment.client.resource(SLICES, namespace=trial.namespace)
        await slices.delete(resolver_slice_name(app.name))
        await trial.observer.until("slice", app.name, "removed")
        await probe.rate(trial.length.rate)
        await trial.flow(trial.length.load / 4)
        await probe.rate(0)
    finally:
        await trial.environment.scale(bundle.NAMESPACE, bundle.OPERATOR, operators)
        await trial.environment.rolled_out(bundle.NAMESPACE, bundle.OPERATOR)
