"""Accounts, roles and bindings; Services, network policies, disruption budgets, autoscaling. Pure.

Roles come from the programs' own rules. They are ClusterRoles or, if nothing may be cluster-wide,
one Role in each namespace. An aggregated ClusterRole lets users add kinds of targets without
changing ours.

The network policies are about the ports of our own pods; policies of the workloads see the resolver as the
client while they wake, and must let it in themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from elasti.api.defaults import (
    DASHBOARD_PORT,
    LOWEST_DATA_PORT,
    OPERATOR_PORT,
    RESOLVER_ADMIN_PORT,
    RESOLVER_SHARED_PORT,
)
from elasti.api.names import (
    AGGREGATE_LABEL,
    GROUP,
    KEEP_AWAKE_ANNOTATION,
    KUBELET_ACCOUNT,
    OPERATOR,
    OPERATOR_SERVICE,
    PLURAL,
    RESOLVER,
    RESOLVER_SERVICE,
    TLS_SECRET,
    WAKE_ANNOTATION,
)
from elasti.api.rbac import READ, PolicyRule
from elasti.api.triggers import cluster
from elasti.cli.install.admission import NEEDS, policy_and_binding, policy_rules
from elasti.cli.install.choices import (
    PROGRAMS,
    Choices,
    Manifest,
    Program,
    account,
    cluster_object,
    program_object,
    selector,
)
from elasti.operator import rbac as operator
from elasti.resolver import rbac as resolver
from kubeloop.objects.meta import JsonObject

_GROUP = "rbac.authorization.k8s.io"
_VERSION = f"{_GROUP}/v1"
TARGETS = f"{OPERATOR}-targets"
ENROLMENT = f"{OPERATOR}-enrolment"
LEADER = f"{OPERATOR}-leader"
OPERATORS = f"{RESOLVER}-operators"
PRIORITY_CLASS = "elasti-critical"
MAY_WAKE = "elasti-may-wake"
_DNS_PORT, _KUBELET_PORT, _PROMETHEUS_PORT = 53, 10250, 9090
_WRITE = ("create", "update", "patch", "delete", "deletecollection")
_AGGREGATED = (
    ("elasti-view", READ, ("view", "edit", "admin")),
    ("elasti-edit", _WRITE, ("edit", "admin")),
)
_RULES = {Program.OPERATOR: operator.NAMESPACED_RULES, Program.RESOLVER: resolver.NAMESPACED_RULES}
_CLUSTER_RULES = {
    Program.OPERATOR: operator.CLUSTER_RULES,
    Program.RESOLVER: resolver.CLUSTER_RULES,
}


def accounts(choices: Choices) -> Iterator[Manifest]:
    """Yield the programs' ServiceAccounts."""
    for program in PROGRAMS:
        obj = program_object("v1", "ServiceAccount", program, choices)
        yield Manifest(f"The {program.value}'s identity.", obj)
    if choices.reads_kubelets:
        where = choices.namespace
        found = cluster_object("v1", "ServiceAccount", KUBELET_ACCOUNT, choices, namespace=where)
        yield Manifest("The operator shows only this account's token to kubelets.", found)


def certificates(choices: Choices) -> Iterator[Manifest]:
    """Yield the Secret that the operator fills; without `data`, so that no apply empties it."""
    if choices.makes_certificates:
        where = choices.namespace
        found = cluster_object("v1", "Secret", TLS_SECRET, choices, namespace=where, type="Opaque")
        yield Manifest("Certificates of both programs; the operator makes and renews them.", found)


def roles(choices: Choices) -> Iterator[Manifest]:
    """Yield every role and binding."""
    if choices.namespaced:
        yield from _namespaced(choices)
    else:
        yield from _clusterwide(choices)
    yield from _leader(choices)


def _rules(
    program: Program, choices: Choices, more: Sequence[PolicyRule] = ()
) -> tuple[PolicyRule, ...]:
    if program is Program.OPERATOR:
        doze = operator.DOZE_RULES if choices.doze else ()
        more = (*more, *doze, *(operator.PATH_RULES if choices.traffic_path else ()))
    return (*_RULES[program], *more)


def _clusterwide(choices: Choices) -> Iterator[Manifest]:
    for program in PROGRAMS:
        rules = _rules(program, choices, _CLUSTER_RULES[program])
        why = f"Rights of the {program.value} in every namespace."
        yield from _granted(why, _role(account(program), rules, program, choices), program, choices)
    # No rules here: a controller of the cluster writes them, and would be contradicted.
    rule = {"clusterRoleSelectors": [{"matchLabels": {AGGREGATE_LABEL: "true"}}]}
    targets = cluster_object(
        _VERSION, "ClusterRole", TARGETS, choices, program=Program.OPERATOR, aggregationRule=rule
    )
    why = (
        f'More kinds of targets: label a ClusterRole {AGGREGATE_LABEL}: "true", and its rules'
        " are the operator's too."
    )
    yield from _granted(why, targets, Program.OPERATOR, choices)
    if choices.enrolment:
        # A role of its own: an uninstall takes it away first, so that nothing is enrolled again.
        role = _role(ENROLMENT, operator.ENROLMENT_RULES, Program.OPERATOR, choices)
        yield from _granted("Rights to enrol labelled Services.", role, Program.OPERATOR, choices)
    if choices.reads_kubelets:
        role = _role(KUBELET_ACCOUNT, cluster.KUBELET_RULES, None, choices)
        why = "Lets the account read how many bytes pods receive and send."
        yield from _granted(why, role, None, choices)
    for name, verbs, roles in _AGGREGATED:
        own = PolicyRule(GROUP, (PLURAL,), verbs, "users with the cluster's own roles")
        role = _role(name, (own,), Program.OPERATOR, choices)
        role["metadata"]["labels"] |= {f"{_GROUP}/aggregate-to-{to}": "true" for to in roles}
        why = f"Extends the ClusterRole {' and '.join(roles)} to ElastiServices."
        yield Manifest(why, role)


def wake_policy(choices: Choices) -> Iterator[Manifest]:
    """Yield the cluster-wide policy that lets users and the resolver wake targets, and nothing else."""
    if choices.namespaced:
        return
    yield from policy_and_binding(
        MAY_WAKE,
        choices,
        _wake_rules(),
        "An account that may patch but not update ElastiServices may wake them and keep them awake, and change"
        " nothing else. The resolver is such an account. Kubernetes 1.30 or newer.",
        "Enforces the policy in every namespace.",
    )
    rules = [{"apiGroups": [GROUP], "resources": [PLURAL], "verbs": ["get", "patch"]}]
    role = cluster_object(_VERSION, "ClusterRole", MAY_WAKE, choices, rules=rules)
    why = "Bind this to people who may wake targets. It is safe only with the policy."
    yield Manifest(why, role, NEEDS)


def _wake_rules() -> JsonObject:
    free = [WAKE_ANNOTATION, KEEP_AWAKE_ANNOTATION]
    same = [
        "object.spec == oldObject.spec",
        *(
            f"has(object.metadata.{field}) == has(oldObject.metadata.{field}) &&"
            f" (!has(object.metadata.{field}) || object.metadata.{field} == oldObject.metadata.{field})"
            for field in ("labels", "finalizers", "ownerReferences")
        ),
        (
            "variables.after.all(name, name in variables.free ||"
            " (name in variables.before && variables.before[name] == variables.after[name]))"
        ),
        "variables.before.all(name, name in variables.free || name in variables.after)",
    ]
    message = (
        "without the right to update ElastiServices only the annotations"
        f" {' and '.join(free)} may be changed"
    )
    annotations = "has({0}.metadata.annotations) ? {0}.metadata.annotations : {{}}"
    return policy_rules(
        [(GROUP, (PLURAL,))],
        ("UPDATE",),
        # Those who may update are asked nothing.
        {
            "may-not-update": f"!authorizer.group('{GROUP}').resource('{PLURAL}')"
            ".namespace(request.namespace).name(request.name).check('update').allowed()"
        },
        {
            "free": f"[{', '.join(map(repr, free))}]",
            "before": annotations.format("oldObject"),
            "after": annotations.format("object"),
        },
        [{"expression": text, "reason": "Forbidden", "message": message} for text in same],
    )


def _namespaced(choices: Choices) -> Iterator[Manifest]:
    for namespace in choices.watch_namespaces:
        for program in PROGRAMS:
            rules = _rules(program, choices)
            role = _role(account(program), rules, program, choices, namespace)
            why = f"Rights of the {program.value} in {namespace}."
            yield from _granted(why, role, program, choices)


def _leader(choices: Choices) -> Iterator[Manifest]:
    rules: tuple[PolicyRule, ...] = (*operator.OWN_RULES, *operator.RESOLVER_NAMESPACE_RULES)
    if choices.makes_certificates:
        rules = (*rules, *operator.TLS_RULES)
    if choices.reads_kubelets:
        rules = (*rules, *cluster.KUBELET_TOKEN_RULES)
    role = _role(LEADER, rules, Program.OPERATOR, choices, choices.namespace)
    why = "Rights on the leader's lease and on the resolvers' slices."
    yield from _granted(why, role, Program.OPERATOR, choices)
    if choices.namespaced:
        found = resolver.OPERATOR_NAMESPACE_RULES
        role = _role(OPERATORS, found, Program.RESOLVER, choices, choices.namespace)
        why = "Lets the resolver find every replica of the operator."
        yield from _granted(why, role, Program.RESOLVER, choices)


def _role(
    name: str,
    rules: Iterable[PolicyRule],
    program: Program | None,
    choices: Choices,
    namespace: str = "",
) -> JsonObject:
    kind, found = "Role" if namespace else "ClusterRole", [rule.to_json() for rule in rules]
    return cluster_object(
        _VERSION, kind, name, choices, program=program, namespace=namespace, rules=found
    )


def _granted(
    why: str, role: JsonObject, program: Program | None, choices: Choices
) -> Iterator[Manifest]:
    """Yield a role, and its binding to a program, or to the account of the role's own name."""
    kind, meta = role["kind"], role["metadata"]
    name, namespace = meta["name"], meta.get("namespace", "")
    who = account(program) if program else name
    binding = cluster_object(
        _VERSION,
        f"{kind}Binding",
        name,
        choices,
        program=program,
        namespace=namespace,
        roleRef={"apiGroup": _GROUP, "kind": kind, "name": name},
        subjects=[{"kind": "ServiceAccount", "name": who, "namespace": choices.namespace}],
    )
    yield Manifest(why, role)
    yield Manifest(f"Grants that to the {program.value if program else 'account'}.", binding)


# The convention of controllers' scaffolds for namespaces whose pods may scrape.
SCRAPERS = {"metrics": "enabled"}


def services(choices: Choices) -> Iterator[Manifest]:
    """Yield the programs' Services, under KubeElasti's names."""
    wake = [_port("http", OPERATOR_PORT)]
    found = _service(OPERATOR_SERVICE, Program.OPERATOR, wake, choices)
    yield Manifest("Resolvers ask any operator replica for a wake-up here.", found)
    ports = [_port("admin", RESOLVER_ADMIN_PORT)]
    if choices.shared_port:
        ports.append(_port("proxy", RESOLVER_SHARED_PORT))
    resolver = _service(RESOLVER_SERVICE, Program.RESOLVER, ports, choices)
    # Services of either family sleep; the resolvers must have an address in each that there is.
    resolver["spec"]["ipFamilyPolicy"] = "PreferDualStack"
    yield Manifest(
        f"Lets the operator find the resolvers; port {RESOLVER_SHARED_PORT}, if it is open, is for clients that send"
        " by the Host header.",
        resolver,
    )


def policies(choices: Choices) -> Iterator[Manifest]:
    """Yield who may reach which port, and what the programs may reach.

    The kubelet's probes are let in by every policy engine.
    """
    # Not the range alone: what sleeps on a former one must be reached until it has moved.
    data = [_allowed(LOWEST_DATA_PORT, 65535)]
    shared = f", {RESOLVER_SHARED_PORT}" if choices.shared_port else ""
    if shared:
        data.append(_allowed(RESOLVER_SHARED_PORT))
    scrapers: JsonObject = {"namespaceSelector": {"matchLabels": SCRAPERS}}
    out = " Out: pods, DNS, the API server{}." if choices.egress_policies else ""
    wakes = {"from": [_pods(Program.RESOLVER), scrapers], "ports": [_allowed(OPERATOR_PORT)]}
    yield Manifest(
        f"Wake-ups and metrics ({OPERATOR_PORT}): the resolvers, and pods of namespaces labelled"
        f" metrics: enabled.{out.format(', kubelets, Prometheus')}",
        _policy(Program.OPERATOR, [wakes], choices),
    )
    admin = {"from": [_pods(Program.OPERATOR), scrapers], "ports": [_allowed(RESOLVER_ADMIN_PORT)]}
    yield Manifest(
        f"Data ports (from {LOWEST_DATA_PORT}{shared}): every client, since they stand for Services that"
        f" sleep. Admin port ({RESOLVER_ADMIN_PORT}): the operator, and pods of namespaces labelled"
        f" metrics: enabled.{out.format('')}",
        _policy(Program.RESOLVER, [{"ports": data}, admin], choices),
    )


def dashboard_access(choices: Choices) -> Iterator[Manifest]:
    """Yield the dashboard's account, Service and policy."""
    program = Program.DASHBOARD
    found = program_object(
        "v1", "ServiceAccount", program, choices, automountServiceAccountToken=False
    )
    yield Manifest("The dashboard's account. It has no rights: visitors bring theirs.", found)
    found = _service(account(program), program, [_port("http", DASHBOARD_PORT)], choices)
    yield Manifest("The dashboard, for the proxy that signs visitors in.", found)
    why = f"The page ({DASHBOARD_PORT}): every client, since it shows what a client's own token allows."
    found = _policy(program, [{"ports": [_allowed(DASHBOARD_PORT)]}], choices)
    yield Manifest(f"{why} Out: DNS, the API server.", found)


def priorities(choices: Choices) -> Iterator[Manifest]:
    """Yield the programs' priority; a namespaced installation has nothing outside of its namespaces."""
    if choices.namespaced:
        return
    # Not system-cluster-critical, which clusters may reserve for kube-system.
    yield Manifest(
        "Requests to everything that sleeps go through these pods: others make room for them.",
        cluster_object(
            "scheduling.k8s.io/v1",
            "PriorityClass",
            PRIORITY_CLASS,
            choices,
            value=1_000_000,
            description="Elasti's operator and resolver.",
        ),
    )


def budgets(choices: Choices) -> Iterator[Manifest]:
    """Yield the PodDisruptionBudgets of the programs."""
    for program in PROGRAMS:
        spec = {
            # Not minAvailable: with one replica no node could ever be drained.
            "maxUnavailable": 1,
            "selector": {"matchLabels": selector(program)},
            # A pod that is not ready protects no request.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        }
        yield Manifest(
            f"Nodes are drained one {program.value} at a time.",
            program_object("policy/v1", "PodDisruptionBudget", program, choices, spec=spec),
        )


def autoscalers(choices: Choices) -> Iterator[Manifest]:
    """Yield the resolver's HorizontalPodAutoscaler, if it is wanted."""
    if choices.autoscaling is None:
        return
    program = Program.RESOLVER
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": account(program)}
    cpu = {"type": "Utilization", "averageUtilization": choices.autoscaling.busy}
    spec = {
        "scaleTargetRef": target,
        "minReplicas": choices.autoscaling.least,
        "maxReplicas": choices.autoscaling.most,
        "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": cpu}}],
        # A resolver that stops serves its connections first, and that may take minutes.
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 600}},
    }
    yield Manifest(
        "Scales the resolvers with their load.",
        program_object("autoscaling/v2", "HorizontalPodAutoscaler", program, choices, spec=spec),
    )


def _service(name: str, program: Program, ports: list[JsonObject], choices: Choices) -> JsonObject:
    spec = {"type": "ClusterIP", "selector": selector(program), "ports": ports}
    return program_object("v1", "Service", program, choices, name=name, spec=spec)


def _port(name: str, number: int) -> JsonObject:
    ports: JsonObject = {"name": name, "port": number, "targetPort": name}
    return ports | {"protocol": "TCP", "appProtocol": "http"}


def _policy(program: Program, ingress: list[JsonObject], choices: Choices) -> JsonObject:
    spec = _pods(program) | {"policyTypes": ["Ingress"], "ingress": ingress}
    if choices.egress_policies:
        spec |= {"policyTypes": ["Ingress", "Egress"], "egress": _egress(program, choices)}
    return program_object("networking.k8s.io/v1", "NetworkPolicy", program, choices, spec=spec)


def _egress(program: Program, choices: Choices) -> list[JsonObject]:
    """Return what a program calls: pods at any port, unless it is the dashboard; a few ports of all else."""
    # To any address: which ones API servers, kubelets and DNS have no policy knows, and engines differ in whether a
    # range of addresses has nodes in it.
    ports = [_DNS_PORT, *choices.api_ports]
    if program is Program.OPERATOR:
        ports += [_PROMETHEUS_PORT, *((_KUBELET_PORT,) if choices.reads_kubelets else ())]
    ports += choices.egress_ports
    pods: list[JsonObject] = [{"to": [{"namespaceSelector": {}}]}] if program in PROGRAMS else []
    rest = [{"protocol": "UDP", "port": _DNS_PORT}, *map(_allowed, dict.fromkeys(ports))]
    return [*pods, {"ports": rest}]


def _pods(program: Program) -> JsonObject:
    return {"podSelector": {"matchLabels": selector(program)}}


def _allowed(first: int, last: int | None = None) -> JsonObject:
    return {"protocol": "TCP", "port": first} | ({"endPort": last} if last else {})
