"""`elasti enrolled`: rows of Services, from the operator's own decision."""

from __future__ import annotations

from tests.cli.environment import CommandEnvironment
from tests.operator.enrolment.subjects import around, existing, namespace, service

from elasti.api.names import SLEEP_LABEL
from elasti.cli.enrolled import enrolled_rows
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
