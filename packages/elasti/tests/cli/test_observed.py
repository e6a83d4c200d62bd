"""Commands about observed ElastiServices: the report, the flip, and what is refused."""

from __future__ import annotations

import csv
import datetime as dt
import io
from typing import Any

import pytest
from click.testing import CliRunner
from tests.cli.environment import CommandEnvironment
from tests.controllers.support import deployment

from elasti.api.names import ELASTISERVICES
from elasti.api.observed import policy_patch
from elasti.api.prices import Prices, Rates
from elasti.api.types import (
    ColdStartStatus,
    ElastiService,
    ElastiServiceSpec,
    ElastiServiceStatus,
    ObservedStatus,
    ScaleTargetRef,
)
from elasti.cli.exits import ExitCode
from elasti.cli.main import main
from elasti.cli.report_content import Report, observed_entry
from kubeloop.client import Client
from kubeloop.objects.meta import ObjectMeta
from kubeloop.objects.patches import MergePatch

DAY = 86400


def es(name: str, verdict: str, *reasons: str, team: str = "", **observed: Any) -> ElastiService:
    given: dict[str, Any] = {
        "since": "2030-01-01T00:00:00Z",
        "observed_seconds": 14 * DAY,
        "asleep_seconds": 7 * DAY,
        "wakes": 9,
        "cpu_millicore_seconds": 3_600_000 * 60,
        "memory_byte_seconds": 3600 * 2**30 * 120,
        "cold_start_seconds": ColdStartStatus(4.0, 9.8),
        "verdict": verdict,
        "reasons": reasons,
    }
    spec = ElastiServiceSpec(
        ScaleTargetRef("apps/v1", "Deployment", name), name, suspend=True, policy="Observe"
    )
    labels = {"team": team} if team else None
    status = ElastiServiceStatus(observed=ObservedStatus(**given | observed))
    return ElastiService(spec, ObjectMeta(name=name, namespace="shop", labels=labels), status)


FLEET = [
    es("web", "Recommended", team="a"),
    es("api", "TooBusy", "RarelyQuiet", team="a", asleep_seconds=0),
    es("db", "Recommended"),
]


def report(by: str = "", prices: Prices | None = None) -> Report:
    return Report(
        entries=[observed_entry(one) for one in FLEET],
        now=dt.datetime(2030, 1, 15, tzinfo=dt.UTC),
        observe=True,
        by=by,
        priced=prices is not None,
        prices=prices,
    )


def test_each_has_a_row_and_each_reason_a_sentence():
    text = report().sheet().rendered("table")
    assert "web    2030-01-01T00:00:00Z   50%      9       9.8" in text
    assert "Recommended: 2 of 3. Asleep, they would release 120.0 core hours" in text
    assert "RarelyQuiet: it is rarely unused" in text


def test_groups_are_sums():
    rows = list(csv.DictReader(io.StringIO(report("label:team").sheet().rendered("csv"))))
    assert [(row["team"], row["services"], row["recommended"]) for row in rows] == [
        ("-", "1", "1"),
        ("a", "2", "1"),
    ]
    assert rows[1]["asleep"] == "0.25"
    assert report("namespace").sheet().rows[0][:2] == ["shop", 3]
    found = report().to_json()["services"]
    assert found[1]["verdict"] == "TooBusy"
    assert found[0]["coldStartSeconds"]["p95"] == 9.8


def test_the_cost_is_that_of_the_recommended_ones():
    # Each: 60 core hours at 0.05 and 120 GiB hours at 0.01 are 4.20; two of three are recommended.
    text = report(prices=Prices(Rates(0.05, 0.01), "EUR")).sheet().rendered("table")
    assert "Cost of that capacity: 8.40 EUR" in text
    assert text.splitlines()[1].split()[6:9] == ["60.0", "120.0", "4.20"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["report", "--prices", "x", "--opencost", "http://x"], "two sources of prices"),
        (["report", "--observe", "--by", "colour"], "write namespace or label:KEY"),
        (["report", "--observe", "--by", "label:"], "write namespace or label:KEY"),
        (["report", "--observe", "--since", "7d"], "leave --since out"),
        (["enable"], "or --observed"),
        (["enable", "deployment/web", "--observed"], "or --observed"),
        (["enable", "deployment/web", "--yes"], "need --observed"),
        (["enable", "deployment/web", "-A"], "need --observed"),
    ],
)
def test_a_wrong_call_says_what_to_write(arguments: list[str], words: str):
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert words in result.output


def test_from_observe_to_enforce(environment: CommandEnvironment):
    rig = environment.rig
    environment.call(rig.cluster.deployments.create(deployment("shy", 1)))
    environment.call(rig.service("shy"))
    assert "elastiservice/shy created" in environment.ok("enable", "deployment/shy", "--observe")
    spec = environment.call(rig.elastiservices.get("shy"))["spec"]
    assert (spec["policy"], spec["suspend"]) == ("Observe", True)
    assert "observed" in environment.ok("get", "shy")
    described = environment.ok("describe", "shy")
    assert "observed: Elasti scales nothing" in described
    assert "Unsafe: its pods have no readiness probe" in described
    assert "private Service elasti" not in described
    for asked in ("sleep", "wake"):
        refused = environment.run(asked, "shy")
        assert refused.exit_code == ExitCode.FAILED
        assert "spec.policy: Observe" in refused.output
    assert "kubectl patch elastiservice shy" in environment.run("sleep", "shy").output
    assert "was not changed" in environment.ok("resume", "shy")
    assert environment.call(rig.elastiservices.get("shy"))["spec"]["suspend"] is True
    assert environment.run("enable", "--observed", "--yes").exit_code == ExitCode.NOT_FOUND
    now = f"{dt.datetime.now(dt.UTC):%FT%TZ}"
    verdict = {"observed": {"since": now, "verdict": "Recommended"}}
    status = rig.elastiservices.subresource("status")
    environment.call(status.patch("shy", MergePatch({"status": verdict})))
    assert "Recommended: 1 of 1" in environment.ok("report", "--observe", "-n", rig.namespace)
    declined = environment.run("enable", "--observed")
    assert declined.exit_code == 1
    assert environment.call(rig.elastiservices.get("shy"))["spec"]["policy"] == "Observe"
    assert "dry run" in environment.run("enable", "--observed", "--dry-run").stderr
    assert "shy may sleep" in environment.ok("enable", "--observed", "--yes")
    spec = environment.call(rig.elastiservices.get("shy"))["spec"]
    assert {"spec": {name: spec[name] for name in ("policy", "suspend")}} == policy_patch(
        observe=False
    )


async def _fleet_of_teams(client: Client) -> None:
    """A namespace of team b without an operator, in which two are of team a: one by itself, one by its Service."""
    space = {"metadata": {"name": "teams", "labels": {"team": "b"}}}
    await client.resource("v1/namespaces").create(space)
    objects = client.resource(ELASTISERVICES, namespace="teams")
    services = client.resource("v1/services", namespace="teams")
    team = {"labels": {"team": "a"}}
    for name, own, of_service in (("own", team, {}), ("served", {}, team), ("plain", {}, {})):
        ports = {"ports": [{"port": 80}]}
        await services.create({"metadata": {"name": name, **of_service}, "spec": ports})
        target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}
        spec = {"service": name, "scaleTargetRef": target, **policy_patch(observe=True)["spec"]}
        await objects.create({"metadata": {"name": name, **own}, "spec": spec})
        observed = {"since": "2030-01-01T00:00:00Z", "verdict": "Recommended"}
        patch = MergePatch({"status": {"observed": observed}})
        await objects.subresource("status").patch(name, patch)


def test_labels_of_the_service_and_the_namespace_count(environment: CommandEnvironment):
    client = environment.rig.client
    environment.call(_fleet_of_teams(client))
    by_team = ("report", "--observe", "--by", "label:team", "-o", "csv")
    for where in ((), ("-n", "teams")):
        rows = csv.DictReader(io.StringIO(environment.ok(*by_team, *where)))
        assert {row["team"]: row["services"] for row in rows} == {"a": "2", "b": "1"}
    flip = ("enable", "--observed", "--yes", "-l", "team=a")
    assert environment.run(*flip).exit_code == ExitCode.NOT_FOUND
    said = environment.ok(*flip, "-A")
    assert "teams/own may sleep\nteams/served may sleep\n" in said
    assert "plain" not in said
    objects = client.resource(ELASTISERVICES, namespace="teams")
    served = environment.call(objects.get("served"))
    assert served["spec"]["policy"] == "Enforce"
    assert not served["metadata"].get("labels")
    assert "plain may sleep" in environment.ok("enable", "--observed", "--yes", "-n", "teams")
