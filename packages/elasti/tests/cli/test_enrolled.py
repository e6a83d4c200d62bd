"""`elasti enrolled` and `elasti diff`: Services and templates, by the operator's own decision."""

from __future__ import annotations

from pathlib import Path

import msgspec
from tests.cli.environment import CommandEnvironment
from tests.controllers.support import deployment
from tests.operator.enrolment.subjects import around, existing, namespace, service
from tests.operator.rig import Rig
from tests.operator.servers import define

from elasti.api.crd import template_definition
from elasti.api.names import ELASTISERVICES, ENROLMENT_FIELD_MANAGER, SLEEP_LABEL, TEMPLATES
from elasti.cli.enrolled import enrolled_rows, surroundings
from elasti.operator.enrolment.decide import decide
from kubeloop.objects.core import Service
from kubeloop.objects.patches import MergePatch


def test_each_labelled_service_has_a_row_and_a_reason():
    own, beside = service(sleep="enforce"), service("db", app="db")
    lost = service("lost", "observe", app="none")
    made = existing(own)
    found = around(own, beside, lost, elastiservices=[made], namespace=namespace("observe"))
    rows = {row.service: row for row in enrolled_rows(found)}
    assert rows["web"][2:] == ("enforced", "default", "the Service's label says enforce")
    assert rows["db"][2:] == ("pending", "default", "the namespace's label says observe")
    assert rows["lost"].state == "left out"
    assert "no Deployment" in rows["lost"].why
    assert list(enrolled_rows(around(service()))) == []


def test_states_of_what_goes_and_of_an_installation_without_enrolment():
    made = existing(service(sleep="enforce"))
    (row,) = enrolled_rows(around(service(), elastiservices=[made]))
    assert row.state == "leaving"
    (row,) = enrolled_rows(around(service(sleep="observe")), enabled=False)
    assert row.state == "off"


def test_a_cluster_is_read(environment: CommandEnvironment):
    rig = environment.rig
    assert "No Service or namespace here" in environment.ok("enrolled")
    environment.call(rig.service("lone"))
    patch = MergePatch({"metadata": {"labels": {SLEEP_LABEL: "observe"}}})
    environment.call(rig.cluster.services.patch("lone", patch))
    said = environment.ok("enrolled")
    environment.call(rig.cluster.services.delete("lone"))
    assert "left out" in said
    assert "no Deployment and no StatefulSet" in said


async def _enrolled_web(rig: Rig) -> None:
    """A Service with a label, and its ElastiService as the operator made it, with a cooldown of a person's."""
    await define(rig.client, template_definition())
    template = {"metadata": {"name": "default"}, "spec": {"triggers": []}}
    await rig.client.resource(TEMPLATES).create(template)
    await rig.cluster.deployments.create(deployment("shown", 1))
    await rig.service("shown")
    label = MergePatch({"metadata": {"labels": {SLEEP_LABEL: "observe"}}})
    made = msgspec.convert(await rig.cluster.services.patch("shown", label), Service)
    (found,) = [one async for one in surroundings(rig.client, rig.namespace, "elasti", 0.0)]
    body = decide(made, found).body
    assert body is not None
    objects = rig.client.resource(ELASTISERVICES)
    await objects.apply(body, namespace=rig.namespace, field_manager=ENROLMENT_FIELD_MANAGER)
    await objects.patch(
        "shown", MergePatch({"spec": {"cooldownPeriod": 77}}), namespace=rig.namespace
    )


async def _end(rig: Rig) -> None:
    await rig.client.resource(ELASTISERVICES).delete("shown", namespace=rig.namespace)
    await rig.cluster.services.delete("shown")
    await rig.cluster.deployments.delete("shown")
    await rig.client.resource(TEMPLATES).delete("default")


def test_a_diff_shows_what_a_template_would_change_and_changes_nothing(
    environment: CommandEnvironment, tmp_path: Path
):
    rig, path = environment.rig, tmp_path / "template.yaml"
    environment.call(_enrolled_web(rig))
    path.write_text(
        "apiVersion: elasti.truefoundry.com/v1alpha1\nkind: ElastiTemplate\n"
        "metadata: {name: default}\nspec: {triggers: [{type: network}], cooldownPeriod: 120}\n"
    )
    said = environment.run("diff", "-f", str(path))
    assert said.stdout == (
        f'{rig.namespace}/shown\n  - triggers: []\n  + triggers: [{{"type":"network"}}]\n'
    )
    assert "1 ElastiService would change" in said.stderr
    path.write_text(path.read_text().replace("cooldownPeriod: 120", "cooldownPeriod: -1"))
    assert "cooldownPeriod" in environment.run("diff", "-f", str(path)).stderr
    path.write_text("kind: Template")
    assert "must have one ElastiTemplate" in environment.run("diff", "-f", str(path)).stderr
    environment.call(_end(rig))
