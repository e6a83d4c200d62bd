"""KubeElasti's own end-to-end cases, 01 to 13, as they are with us.

Where its cases wait for minutes, these choose shorter cooldowns; where it tolerates a failed request or
tries it twice, these do not. (14 is `confined`: it needs an installation of its own.)
"""

from __future__ import annotations

import asyncio
import functools
import hashlib

from tests.operator.keda import keda_on

from elasti.api.names import PAUSED
from kubeloop.client import NotFound
from kubeloop.objects.meta import JsonObject
from tests.e2e import bundle
from tests.e2e.cases.context import CaseContext
from tests.e2e.cases.httpbin import LINE, some_bytes
from tests.e2e.cases.objects import GRPC_PORT, HttpBin
from tests.e2e.cases.prometheus import METRIC
from tests.e2e.environment import SERVICES


async def case_01_scaled_to_zero_by_hand_it_is_proxied(context: CaseContext) -> None:
    app = await context.serving(context.app())
    assert await context.mode(app) == "serve"
    await context.scale(app, 0)
    await context.asleep(app)


async def case_02_every_kind_of_answer_wakes_and_is_whole(context: CaseContext) -> None:
    """Four cycles: a megabyte, a slow one, one without a length, a small one; five requests each."""
    large = some_bytes(1 << 20)[: 1 << 20]
    lines = "".join(LINE % number for number in range(1000)).encode()
    app = await context.serving(context.app())
    for path, body in (
        ("/bytes/1048576", large),
        ("/drip", b"*" * 10),
        ("/stream/1000", lines),
        ("/ip", None),
    ):
        await context.scale(app, 0)
        await context.asleep(app)
        answers = await context.ask(app, *[path] * 5)
        assert [answer["status"] for answer in answers] == [200] * 5, (path, answers)
        if body is not None:
            wanted = (len(body), hashlib.sha256(body).hexdigest())
            assert {(a["length"], a["sha256"]) for a in answers} == {wanted}, path
        await context.reaches(app, "Serve")
        assert await context.mode(app) == "serve"


async def case_03_scaled_to_zero_and_up_by_hand_it_serves(context: CaseContext) -> None:
    app = await context.serving(context.app())
    await context.scale(app, 0)
    await context.asleep(app)
    await context.scale(app, 1)
    await context.reaches(app, "Serve")
    assert await context.mode(app) == "serve"
    assert await context.slice_addresses(app) == []
    (answer,) = await context.ask(app, "/ip")
    assert answer["status"] == 200


async def case_04_a_changed_service_changes_its_private_one(context: CaseContext) -> None:
    app = await context.sleeping(context.app())
    services = context.resource("v1/services")
    service = await services.get(app.name)
    service["spec"]["selector"] = {"app": "another"}
    service["spec"]["ports"] = [{"name": "http", "port": 1111, "targetPort": 8080}]
    await services.replace(service)

    async def follows(selector: str) -> bool:
        private = await context.private(app)
        spec = (private or {}).get("spec") or {}
        ports = [(port["port"], port["targetPort"]) for port in spec.get("ports", ())]
        return spec.get("selector") == {"app": selector} and ports == [(1111, 8080)]

    await context.environment.until(lambda: follows("another"), "the private Service follows")
    # More than KubeElasti checks: the new port wakes, once there is something behind it.
    service = await services.get(app.name)
    service["spec"]["selector"] = {"app": app.name}
    await services.replace(service)

    async def stands() -> bool:
        return await follows(app.name) and await context.slice_addresses(app) != []

    # The resolver left while the Service selected other pods.
    await context.environment.until(stands, "the resolver stands in again")
    await context.reachable(app)
    (answer,) = await context.ask(app, "/ip")
    assert answer["status"] == 200


async def case_05_deleted_it_leaves_nothing_and_a_target_that_is_up(context: CaseContext) -> None:
    awake = await context.serving(context.app(name="awake"))
    asleep = await context.sleeping(context.app(name="asleep"))
    for app in (awake, asleep):
        await context.resource(SERVICES).delete(app.name)
    for app in (awake, asleep):
        await context.environment.until(
            functools.partial(_is_gone, context, app), f"{app.name} is gone"
        )
        assert await context.private(app) is None
        assert await context.environment.slice(context.namespace, app.name) is None
        assert await context.replicas(app) == 1
        (answer,) = await context.ask(app, "/ip")
        assert answer["status"] == 200


async def _is_gone(context: CaseContext, app: HttpBin) -> bool:
    try:
        await context.resource(SERVICES).get(app.name)
    except NotFound:
        return True
    return False


async def case_06_the_slice_lists_exactly_the_resolvers(context: CaseContext) -> None:
    app = await context.sleeping(context.app())
    assert await context.private_endpoints(app) != []
    before = len(await context.environment.resolver_pods())
    for replicas in (before + 1, before):
        await context.environment.scale(bundle.NAMESPACE, bundle.RESOLVER, replicas)
        await context.environment.rolled_out(bundle.NAMESPACE, bundle.RESOLVER)
        await context.environment.until(lambda: _lists_resolvers(context, app), "the slice follows")
    (answer,) = await context.ask(app, "/ip")
    assert answer["status"] == 200


async def _lists_resolvers(context: CaseContext, app: HttpBin) -> bool:
    pods = await context.environment.resolver_pods()
    return await context.slice_addresses(app) == sorted(pod["status"]["podIP"] for pod in pods)


async def case_07_prometheus_shows_it_idle_and_it_sleeps(context: CaseContext) -> None:
    """The metric says use for a while, then none for a cooldown."""
    await context.prometheus.set(5)
    trigger = context.prometheus.trigger(f"sum({METRIC})")
    app = await context.serving(context.app(cooldown=4, spec={"triggers": [trigger]}))

    async def read() -> bool:
        found = {c["type"]: c["status"] for c in (await context.status(app))["conditions"]}
        return found["TriggersHealthy"] == "True"

    await context.environment.until(read, "Prometheus was up for the cooldown, and was read")
    assert await context.replicas(app) == 1
    await context.prometheus.set(0)
    await context.asleep(app)
    await context.prometheus.set(5)
    await context.reaches(app, "Serve")


async def case_08_a_target_that_is_not_ready_stays_behind_the_resolver(
    context: CaseContext,
) -> None:
    """Its trigger wants it up, its start takes seconds, and KEDA was paused by a person."""
    probe = {"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 1}
    slow = {"startupProbe": {**probe, "initialDelaySeconds": 6, "failureThreshold": 30}}
    async with keda_on(context, **{PAUSED: "true"}) as keda:
        spec = {
            "triggers": [context.prometheus.trigger("vector(1)")],
            "autoscaler": {"type": "keda", "name": "web"},
        }
        app = context.app(replicas=0, start=4.0, probes=slow, spec=spec, cooldown=4)
        await context.environment.apply(*app.objects())

        async def up() -> bool:
            return await context.replicas(app) == 1 and len(await context.pods(app)) == 1

        await context.environment.until(up, "the trigger has woken it")
        await context.reaches(app, "Waking")
        assert await context.mode(app) == "proxy"
        assert await context.slice_addresses(app) != []
        await context.scale(app, 2)
        await context.reaches(app, "Serve")
        assert await context.mode(app) == "serve"
        assert await context.replicas(app) == 2
        assert (await keda.annotations())[PAUSED] == "true"


async def case_09_a_stateful_set_sleeps_and_is_woken_by_traffic(context: CaseContext) -> None:
    app = await context.serving(context.app(kind="StatefulSet"))
    await context.scale(app, 0)
    await context.asleep(app)
    answers = await context.ask(app, *["/ip"] * 5)
    assert [answer["status"] for answer in answers] == [200] * 5
    assert '"pod": "target-0"' in answers[0]["text"]
    await context.reaches(app, "Serve")


async def case_10_headers_reach_the_target_as_they_are(context: CaseContext) -> None:
    app = await context.sleeping(context.app())
    request: JsonObject = {"path": "/headers", "headers": {"X-Elasti-Test": "case 10"}}
    for _ in range(2):
        (answer,) = await context.ask(app, request)
        assert answer["status"] == 200
        assert '"X-Elasti-Test": "case 10"' in answer["text"]
        await context.reaches(app, "Serve")


async def case_11_a_probe_is_answered_and_wakes_nobody(context: CaseContext) -> None:
    rule: JsonObject = {
        "path": {"type": "Exact", "value": "/alive"},
        "method": "GET",
        "headers": [{"name": "User-Agent", "type": "RegularExpression", "value": "^checker/"}],
        "response": {"status": 200, "body": "asleep, and well"},
    }
    app = await context.sleeping(context.app(spec={"probeResponse": [rule]}))
    probe: JsonObject = {"path": "/alive", "headers": {"User-Agent": "checker/1.0"}}
    for answer in await context.ask(app, *[probe] * 5):
        assert (answer["status"], answer["text"]) == (200, "asleep, and well")
    assert await context.replicas(app) == 0
    assert await context.mode(app) == "proxy"
    # What no rule matches is traffic.
    (answer,) = await context.ask(app, "/ip")
    assert answer["status"] == 200
    await context.reaches(app, "Serve")


async def case_12_one_connection_carries_several_requests_through_the_wake(
    context: CaseContext,
) -> None:
    app = await context.sleeping(context.app())
    answers = await context.ask(app, "/ip", "/bytes/1000", "/ip", reuse=True)
    assert [answer["status"] for answer in answers] == [200] * 3, answers
    assert answers[1]["length"] == 1000


async def case_13_grpc_wakes_and_streams_beside_http(context: CaseContext) -> None:
    """Unary and server streaming over h2c, from zero; then HTTP/1.1 and gRPC at once, from zero."""
    app = await context.sleeping(context.app(grpc=True))
    host = (await context.environment.address(context.namespace, app.name)).host
    whole = {"unary": "hello", "stream": ["0", "1", "2", "3", "4"]}
    assert await context.run("tests.e2e.cases.ask_grpc", f"{host}:{GRPC_PORT}") == whole
    await context.reaches(app, "Serve")
    await context.scale(app, 0)
    await context.asleep(app)
    both = await _at_once(context, app, host)
    assert both[0] == whole
    assert [answer["status"] for answer in both[1]] == [200] * 3


async def _at_once(
    context: CaseContext, app: HttpBin, host: str
) -> tuple[JsonObject, list[JsonObject]]:
    async with asyncio.TaskGroup() as group:
        grpc = group.create_task(context.run("tests.e2e.cases.ask_grpc", f"{host}:{GRPC_PORT}"))
        http = group.create_task(context.ask(app, *["/ip"] * 3))
    return grpc.result(), http.result()


CASES = (
    case_01_scaled_to_zero_by_hand_it_is_proxied,
    case_02_every_kind_of_answer_wakes_and_is_whole,
    case_03_scaled_to_zero_and_up_by_hand_it_serves,
    case_04_a_changed_service_changes_its_private_one,
    case_05_deleted_it_leaves_nothing_and_a_target_that_is_up,
    case_06_the_slice_lists_exactly_the_resolvers,
    case_07_prometheus_shows_it_idle_and_it_sleeps,
    case_08_a_target_that_is_not_ready_stays_behind_the_resolver,
    case_09_a_stateful_set_sleeps_and_is_woken_by_traffic,
    case_10_headers_reach_the_target_as_they_are,
    case_11_a_probe_is_answered_and_wakes_nobody,
    case_12_one_connection_carries_several_requests_through_the_wake,
    case_13_grpc_wakes_and_streams_beside_http,
)
