"""The hand-over between pods and resolver, on the dev cluster's server and controllers."""

from __future__ import annotations

from tests.devcluster.controllers.support import eventually
from tests.elasti.operator.rig import Rig


async def test_a_target_at_zero_is_proxied_woken_and_released(rig: Rig):
    await rig.web(replicas=0)
    async with rig.operator() as operator:
        await rig.becomes("Proxy")
        assert await rig.addresses() == [rig.resolver.address]
        assert (await rig.status())["mode"] == "proxy"
        code, reply = await rig.wake(operator, "web")
        assert (code, reply["outcome"]) == (202, "scaling")
        assert await rig.replicas() == 1
        await rig.becomes("Serve")
        assert await rig.slice() is None
        assert (await rig.status())["mode"] == "serve"
