"""Every block that readers copy is one that works: manifests fit their schemas, commands their parsers."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from click.testing import CliRunner

from devkube.apiserver.crd.definition import root_type
from devkube.apiserver.crd.validation import SchemaValidator
from devkube.apiserver.schema.conform import Conformer, required_fields
from devkube.apiserver.schema.types import BuiltinTypes, Type
from elasti.api.crd import custom_resource_definition, template_definition
from elasti.api.names import TEMPLATE_KIND
from elasti.api.prices import prices_of
from elasti.api.types import ElastiService
from elasti.api.validation import problems_of
from elasti.cli.main import main
from elasti.operator.enrolment.decide import template_spec
from hack.reference import metrics
from tests.controlplane.rig import ControlPlane
from tests.docs.pages import ROOT, Block, blocks, check_values, named

# Pictures and outputs, and what other tests read (test_kubeloop_guides, test_readme of devkube).
UNCHECKED = {"", "text", "python", "toml"}


def test_every_language_is_known():
    known = UNCHECKED | {"yaml", "json", "console", "sh", "caddyfile", "nginx"}
    assert [block.where for block in blocks() if block.language not in known] == []


@named(blocks("json"))
def test_json_can_be_read(block: Block):
    assert json.loads(block.text)


# Manifests

BUILTIN = BuiltinTypes()
ELASTI_TEMPLATE = template_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
ELASTI_SERVICE = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
PACKAGES = {
    "v1": "io.k8s.api.core.v1",
    "apps/v1": "io.k8s.api.apps.v1",
    "networking.k8s.io/v1": "io.k8s.api.networking.v1",
    "rbac.authorization.k8s.io/v1": "io.k8s.api.rbac.v1",
}
# Of what others define, the fields that the pages may name. Compared on 16 November 2026 with the definitions of
# Argo CD 3.5.6, kustomize-controller and source-controller 1.10.1, and helm-controller 1.4.0.
THEIRS = {
    "argoproj.io/v1alpha1/Application": """
        project source.repoURL source.targetRevision source.path source.helm.valuesObject.* destination.server
        destination.namespace ignoreDifferences[].group ignoreDifferences[].kind ignoreDifferences[].jsonPointers[]
        syncPolicy.automated.prune syncPolicy.automated.selfHeal syncPolicy.syncOptions[]
    """,
    "kustomize.toolkit.fluxcd.io/v1/Kustomization": """
        interval path prune sourceRef.kind sourceRef.name ignore[].paths[] ignore[].target.kind
    """,
    "source.toolkit.fluxcd.io/v1/GitRepository": "interval url ref.branch",
    "gateway.networking.k8s.io/v1/HTTPRoute": """
        parentRefs[].name parentRefs[].namespace hostnames[] rules[].backendRefs[].name rules[].backendRefs[].port
        rules[].timeouts.request
    """,
    "security.istio.io/v1/PeerAuthentication": "selector.matchLabels.* mtls.mode portLevelMtls.*",
    "cert-manager.io/v1/Certificate": "secretName dnsNames[] issuerRef.kind issuerRef.name",
    "helm.toolkit.fluxcd.io/v2/HelmRelease": """
        interval targetNamespace releaseName install.createNamespace values.* chart.spec.chart
        chart.spec.sourceRef.kind chart.spec.sourceRef.name chart.spec.sourceRef.namespace driftDetection.mode
        driftDetection.ignore[].paths[] driftDetection.ignore[].target.kind
    """,
}
ADMISSION = "admissionregistration.k8s.io/v1"
SYNC_OPTIONS = {"CreateNamespace=true", "RespectIgnoreDifferences=true", "ServerSideApply=true"}


@named(blocks("yaml"))
def test_a_manifest_fits_its_schema(block: Block):
    for document in yaml.safe_load_all(block.text):
        if block.text.startswith("# values.yaml"):
            check_values(document)
        elif block.text.startswith("# prometheus.yml"):
            for scraped in document["scrape_configs"]:
                # Debian's Prometheus is built without discovery by Kubernetes.
                assert scraped.pop("kubernetes_sd_configs")[0]["role"] == "pod"
            promtool("config", "--syntax-only", text=json.dumps(document))
        elif "kind" in document:
            check_object(document)
        else:
            check_fragment(document)


@pytest.mark.controlplane
def test_kubernetes_accepts_the_manifests(controlplane: ControlPlane):
    """The rules too, which a dev cluster stores and does not evaluate."""
    namespace = controlplane.create_namespace("docs")
    found: list[dict[str, Any]] = []
    for block in blocks("yaml"):
        for document in yaml.safe_load_all(block.text):
            if f"{document.get('apiVersion')}/{document.get('kind')}" in (*THEIRS, "None/None"):
                continue
            if document["kind"] == TEMPLATE_KIND:
                continue  # packages/elasti/tests/cli/install/test_real_server.py
            if document["apiVersion"] != ADMISSION:
                document["metadata"] |= {"namespace": namespace, "name": f"block-{len(found)}"}
            found.append(document)
    made = CliRunner().invoke(main, ["manifests", "--image=registry.example.com/elasti:1"]).stdout
    found += yaml.safe_load_all(made.replace("namespace: elasti\n", f"namespace: {namespace}\n"))
    dry = ("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-")
    said = controlplane.kubectl(*dry, stdin=yaml.safe_dump_all(found))
    assert said.count("serverside-applied (server dry run)") == len(found) > 60


def check_object(document: dict[str, Any]) -> None:
    name = f"{document['apiVersion']}/{document['kind']}"
    if document["kind"] == "ElastiService":
        check_elasti_service(document)
    elif document["kind"] == TEMPLATE_KIND:
        assert SchemaValidator(ELASTI_TEMPLATE).check(document) == []
        assert template_spec(document) == document["spec"]
    elif name in THEIRS:
        allowed = [field.replace("[]", "") for field in THEIRS[name].split()]
        assert [path for path in leaves(document["spec"]) if not is_allowed(path, allowed)] == []
        source = document["spec"].get("source", {})
        assert set(document["spec"].get("syncPolicy", {}).get("syncOptions", ())) <= SYNC_OPTIONS
        check_values(source.get("helm", {}).get("valuesObject", {}))
        check_values(document["spec"].get("values", {}))
    elif document["apiVersion"] != ADMISSION:  # the control plane checks it
        package = PACKAGES[document["apiVersion"]]
        check_type(document, BUILTIN.type(f"{package}.{document['kind']}"))


def check_elasti_service(document: dict[str, Any]) -> None:
    metadata = BUILTIN.type("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta")
    check_type(document, root_type(ELASTI_SERVICE, metadata))
    assert SchemaValidator(ELASTI_SERVICE).check(document) == []
    assert problems_of(msgspec.convert(document, ElastiService)) == []


def check_type(value: Any, kind: Type) -> None:
    conformer = Conformer()
    conformer.conform(value, kind)
    assert conformer.unknown == [], "unknown fields"
    assert list(required_fields(value, kind, "")) == [], "missing fields"


def check_fragment(document: dict[str, Any]) -> None:
    """A part of an object whose place the page says: of an ElastiService, a container, a policy."""
    spec = ELASTI_SERVICE["properties"]["spec"]["properties"]
    if set(document) <= set(spec):
        target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
        whole = {"service": "web", "scaleTargetRef": target, **document}
        check_elasti_service({"metadata": {"name": "web"}, "spec": whole})
    elif "lifecycle" in document:
        check_type({"name": "web", **document}, BUILTIN.type("io.k8s.api.core.v1.Container"))
    elif "currency" in document:
        prices_of(document)
    else:
        assert list(document) == ["ingress"], "a fragment of what?"
        policy = {"podSelector": {}, **document}
        check_type(policy, BUILTIN.type("io.k8s.api.networking.v1.NetworkPolicySpec"))


def leaves(value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from leaves(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner, path)
    else:
        yield path


def is_allowed(path: str, allowed: list[str]) -> bool:
    return path in allowed or any(
        end.endswith(".*") and path.startswith(end[:-1]) for end in allowed
    )


# Configurations of others


def promtool(what: str, *options: str, text: str) -> None:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not here")
    with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
        file.write(text)
        file.flush()
        asked = subprocess.run(
            [program, "check", what, *options, file.name],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert asked.returncode == 0, asked.stdout + asked.stderr


def test_queries_are_promql():
    texts = [page.read_text() for page in ROOT.glob("docs/**/*.md")]
    queries = [
        found for text in texts for found in re.findall(r"^ *query: (.+)$", text, re.MULTILINE)
    ]
    asked = (
        (ROOT / "docs" / "howto" / "prometheus.md")
        .read_text()
        .split("## Questions and their queries")[1]
    )
    queries += re.findall(r"^\| [^|]+ \| `([^`]+)` \|", asked, re.MULTILINE)
    rules = [{"record": f"query{number}", "expr": query} for number, query in enumerate(queries)]
    assert len(rules) > 5
    promtool("rules", text=json.dumps({"groups": [{"name": "docs", "rules": rules}]}))


CADDY = {
    "health_headers", "health_uri", "lb_try_duration", "response_header_timeout", "reverse_proxy",
    "transport", "versions",
}  # fmt: skip


@named(blocks("caddyfile"))
def test_a_caddyfile_has_directives_that_there_are(block: Block):
    depth, inside_headers = 0, False
    for line in filter(None, map(str.strip, block.text.splitlines())):
        if line == "}":
            depth -= 1
            inside_headers = False
            continue
        if depth and not inside_headers:
            assert line.split()[0] in CADDY, line
        inside_headers = inside_headers or line.startswith("health_headers")
        depth += line.endswith("{")
    assert depth == 0


@named(blocks("nginx"))
def test_an_nginx_configuration_is_accepted(block: Block, tmp_path: Path):
    nginx = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin")
    if nginx is None:
        pytest.skip("nginx is not here")
    servers = re.sub(r"\w+\.shop\.svc\.cluster\.local", "127.0.0.1", block.text)
    servers = servers.replace("listen 80;", "listen 127.0.0.1:8081;")
    file = tmp_path / "nginx.conf"
    # Its own directories are root's.
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    own = " ".join(f"{kind}_temp_path {tmp_path}/{kind};" for kind in kinds)
    file.write_text(f"pid {tmp_path}/pid; events {{}} http {{ access_log off; {own} {servers} }}")
    asked = subprocess.run(
        [nginx, "-t", "-e", f"{tmp_path}/log", "-p", str(tmp_path), "-c", str(file)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert asked.returncode == 0, asked.stderr


def test_metrics_that_pages_name_are_there():
    there = metrics()
    for page in ROOT.glob("docs/**/*.md"):
        for name in re.findall(r"\b(elasti_(?:resolver_|operator_)?[a-z_]+)\b", page.read_text()):
            base = re.sub(r"_(bucket|sum|count)$", "", name)
            assert f"`{name}`" in there or f"`{base}`" in there, f"{page.name} names {name}"
