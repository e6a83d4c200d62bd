"""What the built-in kinds refuse, and how they say so."""

from __future__ import annotations

import copy

import pytest

from kubeloop.objects.patches import JsonPatch, MergePatch
from tests.conformance.behaviours import behaviour
from tests.conformance.kube import Kube, fields_of, refused
from tests.conformance.manifests import (
    config_map,
    deployment,
    endpoint_slice,
    pod,
    service,
    stateful_set,
)

NAMES = {
    "UPPER": "a lowercase RFC 1123 subdomain must consist of",
    "under_score": "a lowercase RFC 1123 subdomain must consist of",
    "-dash": "a lowercase RFC 1123 subdomain must consist of",
    "x" * 254: "must be no more than 253",
}


@behaviour("validation.name", "Names are DNS subdomains; the refusal says the rule")
@pytest.mark.parametrize("name", NAMES, ids=["upper", "underscore", "dash", "long"])
async def test_names(kube: Kube, name: str) -> None:
    error = await refused(kube.maps.create(config_map(name)), 422, "Invalid")
    assert fields_of(error) == {"metadata.name"}
    assert NAMES[name] in str(error)


@behaviour("validation.service-name", "A Service's name is a DNS label, which is stricter")
async def test_service_names(kube: Kube) -> None:
    messages = {"a.b": "must not contain dots", "Big": "a lowercase RFC 1123 label must consist of"}
    for name, message in messages.items():
        error = await refused(kube.services.create(service(name)), 422, "Invalid")
        assert fields_of(error) >= {"metadata.name"}
        assert message in str(error)


@behaviour("validation.namespace-name", "A namespace's name is a DNS label")
async def test_namespace_names(kube: Kube) -> None:
    namespaces = kube.cluster("v1/namespaces")
    error = await refused(namespaces.create({"metadata": {"name": "a.b"}}), 422, "Invalid")
    assert "must not contain dots" in str(error)
    error = await refused(namespaces.create({"metadata": {"name": "A"}}), 422, "Invalid")
    assert "a lowercase RFC 1123 label must consist of" in str(error)


LABELS = {
    "value": ({"a": "not ok"}, "a valid label must be an empty string or consist of"),
    "key": ({"a b": "x"}, "name part must consist of alphanumeric characters"),
    "long": ({"a": "x" * 64}, "must be no more than 63"),
    "prefix": ({"UP.com/a": "x"}, "prefix part a lowercase RFC 1123 subdomain"),
}


@behaviour("validation.labels", "Label keys and values have a grammar and a length")
@pytest.mark.parametrize("case", LABELS)
async def test_labels(kube: Kube, case: str) -> None:
    labels, message = LABELS[case]
    error = await refused(kube.maps.create(config_map("a", labels=labels)), 422, "Invalid")
    assert fields_of(error) == {"metadata.labels"}
    assert message in str(error)


@behaviour("validation.annotations", "Annotation keys have the grammar of label keys")
async def test_annotation_keys(kube: Kube) -> None:
    obj = config_map("a", annotations={"a b": "anything at all"})
    error = await refused(kube.maps.create(obj), 422, "Invalid")
    assert fields_of(error) == {"metadata.annotations"}


@behaviour("validation.finalizers", "A finalizer's name must be qualified")
async def test_finalizer_names(kube: Kube) -> None:
    error = await refused(kube.maps.create(config_map("a", finalizers=["bad name"])), 422)
    assert "metadata.finalizers" in str(error)


@behaviour(
    "validation.owner-references", "Owner references must be complete, one controller at most"
)
async def test_owner_references(kube: Kube) -> None:
    reference = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": "o",
        "uid": "1",
        "controller": True,
    }
    two = [reference, {**reference, "uid": "2"}]
    error = await refused(kube.maps.create(config_map("a", ownerReferences=two)), 422, "Invalid")
    assert "Only one reference can have Controller set to true" in str(error)
    nameless = [{**reference, "name": ""}]
    error = await refused(kube.maps.create(config_map("a", ownerReferences=nameless)), 422)
    assert 'metadata.ownerReferences.name: Invalid value: "": must not be empty' in str(error)


@behaviour("validation.configmap-keys", "Keys of ConfigMaps are file names")
async def test_config_map_keys(kube: Kube) -> None:
    error = await refused(kube.maps.create(config_map("a", {"a/b": "x"})), 422, "Invalid")
    assert "a valid config key must consist of alphanumeric characters" in str(error)


@behaviour("validation.configmap-size", "A ConfigMap holds a mebibyte at most")
async def test_config_map_size(kube: Kube) -> None:
    large = config_map("a", {"x": "x" * (1024 * 1024 + 1)})
    answer = await kube.send("POST", kube.path("v1/configmaps"), large)
    assert (answer.status, answer.json["reason"]) == (422, "Invalid")
    assert "Too long: may not be more than 1048576 bytes" in answer.json["message"]


@behaviour("validation.containers", "A pod has containers, each with a name and an image")
async def test_containers(kube: Kube) -> None:
    error = await refused(kube.pods.create(pod("p", containers=[])), 422, "Invalid")
    assert "spec.containers: Required value" in str(error)
    error = await refused(kube.pods.create(pod("p", containers=[{"name": "a"}])), 422, "Invalid")
    assert fields_of(error) == {"spec.containers[0].image"}
    twice = [{"name": "a", "image": "i"}] * 2
    error = await refused(kube.pods.create(pod("p", containers=twice)), 422, "Invalid")
    assert 'spec.containers[1].name: Duplicate value: "a"' in str(error)


@behaviour("validation.container-ports", "Container ports are between 1 and 65535, names are short")
async def test_container_ports(kube: Kube) -> None:
    container = {"name": "a", "image": "i", "ports": [{"containerPort": 70000}]}
    error = await refused(kube.pods.create(pod("p", containers=[container])), 422, "Invalid")
    assert (
        "spec.containers[0].ports[0].containerPort: Invalid value: 70000:"
        " must be between 1 and 65535, inclusive"
    ) in str(error)
    container["ports"] = [{"name": "much-too-long-a-name", "containerPort": 80}]
    error = await refused(kube.pods.create(pod("p", containers=[container])), 422, "Invalid")
    assert fields_of(error) == {"spec.containers[0].ports[0].name"}


@behaviour("validation.restart-policy", "Enumerated fields list what they take")
async def test_enumerations(kube: Kube) -> None:
    error = await refused(kube.pods.create(pod("p", restartPolicy="Sometimes")), 422, "Invalid")
    assert 'spec.restartPolicy: Unsupported value: "Sometimes": supported values:' in str(error)


@behaviour("validation.probes", "A probe has exactly one way to look")
async def test_probes(kube: Kube) -> None:
    container = {"name": "a", "image": "i", "readinessProbe": {"periodSeconds": 1}}
    error = await refused(kube.pods.create(pod("p", containers=[container])), 422, "Invalid")
    assert "spec.containers[0].readinessProbe: Required value: must specify a handler type" in str(
        error
    )


@behaviour("validation.quantities", "Quantities are read, and refused where they cannot be")
async def test_quantities(kube: Kube) -> None:
    container = {"name": "a", "image": "i", "resources": {"requests": {"cpu": "lots"}}}
    answer = await kube.send("POST", kube.path("v1/pods"), pod("p", containers=[container]))
    assert answer.status == 400, answer
    assert "quantities must match the regular expression" in answer.json["message"]


@behaviour("validation.volume-mounts", "A volume mount must name a volume of the pod")
async def test_volume_mounts(kube: Kube) -> None:
    mount = {"name": "none", "mountPath": "/x"}
    container = {"name": "a", "image": "i", "volumeMounts": [mount]}
    error = await refused(kube.pods.create(pod("p", containers=[container])), 422, "Invalid")
    assert 'spec.containers[0].volumeMounts[0].name: Not found: "none"' in str(error)


@behaviour(
    "validation.selector-required", "A Deployment needs a selector that its template matches"
)
async def test_selectors_match_templates(kube: Kube) -> None:
    made = deployment()
    del made["spec"]["selector"]
    error = await refused(kube.deployments.create(made), 422, "Invalid")
    assert "spec.selector: Required value" in str(error)
    made = deployment(selector={"matchLabels": {"app": "other"}})
    error = await refused(kube.deployments.create(made), 422, "Invalid")
    assert "`selector` does not match template `labels`" in str(error)


@behaviour("validation.selector-immutable", "A workload's selector cannot be changed")
async def test_selectors_are_immutable(kube: Kube) -> None:
    await kube.deployments.create(deployment())
    patch = {
        "spec": {
            "selector": {"matchLabels": {"x": "y"}},
            "template": {"metadata": {"labels": {"x": "y"}}},
        }
    }
    error = await refused(kube.deployments.patch("web", MergePatch(patch)), 422, "Invalid")
    assert fields_of(error) == {"spec.selector"}
    assert "field is immutable" in str(error)


@behaviour("validation.strategy", "Recreate takes no rolling update parameters")
async def test_strategies(kube: Kube) -> None:
    strategy = {"type": "Recreate", "rollingUpdate": {"maxSurge": 1}}
    error = await refused(kube.deployments.create(deployment(strategy=strategy)), 422, "Invalid")
    assert "may not be specified when strategy `type` is 'Recreate'" in str(error)


@behaviour("validation.statefulset-update", "Most of a StatefulSet's spec cannot be changed")
async def test_stateful_sets_are_immutable(kube: Kube) -> None:
    await kube.statefulsets.create(stateful_set())
    patch = MergePatch({"spec": {"serviceName": "other"}})
    error = await refused(kube.statefulsets.patch("db", patch), 422, "Invalid")
    assert "updates to statefulset spec for fields other than" in str(error)
    await kube.statefulsets.patch("db", MergePatch({"spec": {"minReadySeconds": 1}}))


@behaviour(
    "validation.service-ports", "A Service needs ports, and names for them if there are several"
)
async def test_service_ports(kube: Kube) -> None:
    error = await refused(kube.services.create(service(ports=[])), 422, "Invalid")
    assert "spec.ports: Required value" in str(error)
    nameless = [{"port": 80}, {"port": 81}]
    error = await refused(kube.services.create(service(ports=nameless)), 422, "Invalid")
    assert "spec.ports[0].name: Required value" in str(error)
    twice = [{"name": "a", "port": 80}, {"name": "a", "port": 81}]
    error = await refused(kube.services.create(service(ports=twice)), 422, "Invalid")
    assert 'spec.ports[1].name: Duplicate value: "a"' in str(error)
    error = await refused(kube.services.create(service(ports=[{"port": 0}])), 422, "Invalid")
    assert "spec.ports[0].port" in str(error)


@behaviour(
    "validation.service-defaults", "A Service gets an address, a target port and its policies"
)
async def test_service_defaults(kube: Kube) -> None:
    spec = (await kube.services.create(service()))["spec"]
    assert spec["clusterIPs"] == [spec["clusterIP"]]
    assert spec["ports"] == [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 80}]
    assert spec["type"] == "ClusterIP"
    assert spec["sessionAffinity"] == "None"
    assert spec["ipFamilies"] == ["IPv4"]
    assert spec["ipFamilyPolicy"] == "SingleStack"
    assert spec["internalTrafficPolicy"] == "Cluster"


@behaviour(
    "validation.cluster-ip", "A clusterIP cannot be changed, taken twice, or be out of range"
)
async def test_cluster_addresses(kube: Kube) -> None:
    made = await kube.services.create(service())
    patch = MergePatch({"spec": {"clusterIP": "10.201.9.9", "clusterIPs": ["10.201.9.9"]}})
    error = await refused(kube.services.patch("web", patch), 422, "Invalid")
    assert "may not change once set" in str(error)
    taken = service("other", clusterIP=made["spec"]["clusterIP"])
    error = await refused(kube.services.create(taken), 422, "Invalid")
    assert "provided IP is already allocated" in str(error)
    error = await refused(kube.services.create(service("other", clusterIP="192.0.2.1")), 422)
    assert (
        'spec.clusterIPs: Invalid value: ["192.0.2.1"]: failed to allocate IP 192.0.2.1:'
        " the provided network does not match the current range"
    ) in str(error)


@behaviour("validation.headless", "clusterIP None makes a headless Service without an address")
async def test_headless_services(kube: Kube) -> None:
    made = await kube.services.create(service(clusterIP="None"))
    assert made["spec"]["clusterIP"] == "None"
    assert made["spec"]["clusterIPs"] == ["None"]


@behaviour("validation.external-name", "An ExternalName Service has a name and no address")
async def test_external_names(kube: Kube) -> None:
    made = await kube.services.create(service(type="ExternalName", externalName="example.com"))
    assert "clusterIP" not in made["spec"]
    error = await refused(kube.services.create(service("b", type="ExternalName")), 422, "Invalid")
    assert "spec.externalName: Required value" in str(error)


@behaviour(
    "validation.service-type-change",
    "NodePorts come and go with the Service's type",
    devcluster="No NodePort is allocated: nothing would listen there.",
)
async def test_service_types_change(kube: Kube) -> None:
    await kube.services.create(service())
    opened = await kube.services.patch("web", MergePatch({"spec": {"type": "NodePort"}}))
    if kube.is_dev:
        assert "nodePort" not in opened["spec"]["ports"][0]
        return
    port = opened["spec"]["ports"][0]["nodePort"]
    assert 30000 <= port <= 32767
    closed = await kube.services.patch("web", MergePatch({"spec": {"type": "ClusterIP"}}))
    assert "nodePort" not in closed["spec"]["ports"][0]


@behaviour(
    "validation.node-port",
    "A NodePort is in the range and free",
    devcluster="No NodePort is checked: nothing would listen there.",
)
async def test_node_ports(kube: Kube) -> None:
    def on(name: str, port: int):
        return service(name, type="NodePort", ports=[{"port": 80, "nodePort": port}])

    if kube.is_dev:
        await kube.services.create(on("a", 99))
        return
    error = await refused(kube.services.create(on("a", 99)), 422, "Invalid")
    assert "The range of valid ports is 30000-32767" in str(error)
    made = await kube.services.create(service("b", type="NodePort"))
    taken = made["spec"]["ports"][0]["nodePort"]
    error = await refused(kube.services.create(on("c", taken)), 422, "Invalid")
    assert "provided port is already allocated" in str(error)


@behaviour("validation.slice-address-type", "An EndpointSlice's address type cannot be changed")
async def test_slice_types(kube: Kube) -> None:
    await kube.slices.create(endpoint_slice("s"))
    change = JsonPatch([{"op": "replace", "path": "/addressType", "value": "IPv6"}])
    error = await refused(kube.slices.patch("s", change), 422, "Invalid")
    assert "addressType" in fields_of(error)


@behaviour("validation.slice-addresses", "Addresses of an EndpointSlice are of its type")
async def test_slice_addresses(kube: Kube) -> None:
    wrong = endpoint_slice("s", endpoints=[{"addresses": ["not-an-address"]}])
    error = await refused(kube.slices.create(wrong), 422, "Invalid")
    assert fields_of(error) == {"endpoints[0].addresses[0]"}
    empty = endpoint_slice("s", endpoints=[{"addresses": []}])
    error = await refused(kube.slices.create(empty), 422, "Invalid")
    assert "endpoints[0].addresses" in str(error)


@behaviour(
    "validation.slice-loopback",
    "Loopback addresses are refused in EndpointSlices",
    devcluster="pods have loopback addresses, so that nothing needs privileges: they are accepted",
)
async def test_loopback_addresses(kube: Kube) -> None:
    loop = endpoint_slice("s", endpoints=[{"addresses": ["127.1.2.3"]}])
    if kube.is_dev:
        await kube.slices.create(loop)
        return
    error = await refused(kube.slices.create(loop), 422, "Invalid")
    assert "may not be in the loopback range" in str(error)


@behaviour("validation.secret-type", "A Secret is Opaque unless it says, and its type is final")
async def test_secret_types(kube: Kube) -> None:
    secrets = kube.of("v1/secrets")
    made = await secrets.create({"metadata": {"name": "s"}, "stringData": {"x": "1"}})
    assert made["type"] == "Opaque"
    assert made["data"] == {"x": "MQ=="}
    assert "stringData" not in made
    changed = copy.deepcopy(made) | {"type": "example.com/other"}
    error = await refused(secrets.replace(changed), 422, "Invalid")
    assert fields_of(error) == {"type"}


@behaviour("validation.many-causes", "All errors are reported at once, with a cause for each field")
async def test_all_errors_are_reported(kube: Kube) -> None:
    wrong = deployment(replicas=-1)
    wrong["spec"]["template"]["spec"]["containers"][0]["name"] = "Bad_Name"
    error = await refused(kube.deployments.create(wrong), 422, "Invalid")
    assert fields_of(error) == {"spec.replicas", "spec.template.spec.containers[0].name"}
    assert str(error).startswith('Deployment.apps "web" is invalid: [')
