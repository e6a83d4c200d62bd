"""Which rights commands need, and which the programs need: asked of the API server, rule by rule."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from elasti.api.names import GROUP, PLURAL
from elasti.cli.doctor.findings import DoctorFinding, ok, problem, warning
from elasti.operator import rbac as operator
from elasti.resolver import rbac as resolver

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from elasti.api.rbac import PolicyRule
    from kubeloop.client import Client
    from kubeloop.objects.meta import JsonObject

_GROUP = "authorization.k8s.io/v1"
_AT_ONCE = 8


class Permission(NamedTuple):
    """One verb on one resource; `namespace` is empty for the whole cluster."""

    verb: str
    group: str
    resource: str
    namespace: str = ""
    name: str = ""

    def attributes(self) -> JsonObject:
        """Return it as a review asks for it."""
        resource, _, subresource = self.resource.partition("/")
        asked = {
            "verb": self.verb,
            "group": self.group,
            "resource": resource,
            "subresource": subresource,
            "namespace": self.namespace,
            "name": self.name,
        }
        return {key: value for key, value in asked.items() if value}


class NeededPermission(NamedTuple):
    """A right that a command needs."""

    command: str
    right: Permission


def needs(namespace: str, elasti_namespace: str) -> tuple[NeededPermission, ...]:
    """Return what our own commands need; an empty namespace means all."""
    return (
        NeededPermission("elasti get, describe", Permission("get", GROUP, PLURAL, namespace)),
        NeededPermission("elasti get", Permission("list", GROUP, PLURAL, namespace)),
        NeededPermission(
            "elasti get --watch, wake --wait", Permission("watch", GROUP, PLURAL, namespace)
        ),
        NeededPermission("elasti wake, sleep", Permission("patch", GROUP, PLURAL, namespace)),
        NeededPermission("the column HELD", Permission("get", "", "pods/proxy", elasti_namespace)),
    )


async def judge_own(client: Client, wanted: Sequence[NeededPermission]) -> list[DoctorFinding]:
    """Ask what the caller may do. Raises KubeError."""
    missing = [
        need for need in wanted if not await _allowed(client, "SelfSubjectAccessReview", need.right)
    ]
    if not missing:
        return [ok("your rights", "enough for every command")]
    return [
        warning(
            "your rights",
            f"{need.command}: you may not {need.right.verb} {need.right.resource}"
            f"{_where(need.right.namespace)}",
            "\n".join(["A role with this rule allows it:", *as_rules([need.right])]),
        )
        for need in missing
    ]


def program_rights(
    program: str, namespaces: Sequence[str], elasti_namespace: str, served: Collection[str]
) -> tuple[Permission, ...]:
    """Return what a program needs, of the API groups that the cluster serves."""
    source = operator if program == "operator" else resolver
    found = [*_expanded(source.NAMESPACED_RULES, namespaces or ("",))]
    if not namespaces:
        found += _expanded(source.CLUSTER_RULES, ("",))
    if program == "operator":
        found += _expanded(operator.OWN_RULES, (elasti_namespace,))
        if namespaces:
            found += _expanded(operator.RESOLVER_NAMESPACE_RULES, (elasti_namespace,))
    return tuple(right for right in found if not right.group or right.group in served)


async def judge_account(
    client: Client, program: str, account: str, rights: Sequence[Permission]
) -> list[DoctorFinding]:
    """Ask what a program's account may do. Raises KubeError."""
    gate = asyncio.Semaphore(_AT_ONCE)
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{account.split(':')[2]}"]
    who = {"user": account, "groups": [*groups, "system:authenticated"]}

    async def allowed(right: Permission) -> bool:
        async with gate:
            return await _allowed(client, "SubjectAccessReview", right, **who)

    answers = await asyncio.gather(*map(allowed, rights))
    missing = [right for right, answer in zip(rights, answers, strict=True) if not answer]
    topic = f"{program}'s rights"
    if not missing:
        return [ok(topic, f"{account} has all {len(rights)} that it needs")]
    return [
        problem(
            topic,
            f"{account} lacks {len(missing)} of {len(rights)} rights",
            "\n".join(["elasti install restores them. Missing rules:", *as_rules(missing)]),
        )
    ]


async def _allowed(client: Client, kind: str, right: Permission, **who: Any) -> bool:
    """Ask the API server about one right, of the caller or of who is named."""
    spec = {"resourceAttributes": right.attributes(), **who}
    reviews = client.resource(f"{_GROUP}/{kind.lower()}s")
    answer = await reviews.create({"apiVersion": _GROUP, "kind": kind, "spec": spec})
    return bool((answer.get("status") or {}).get("allowed"))


def as_rules(rights: Iterable[Permission]) -> list[str]:
    """Return rights as the lines of RBAC rules, verbs of one resource together."""
    verbs: dict[tuple[str, str, str], list[str]] = {}
    for right in rights:
        verbs.setdefault((right.group, right.resource, right.namespace), []).append(right.verb)
    return [
        f'- {{apiGroups: ["{group}"], resources: [{resource}], verbs: [{", ".join(found)}]}}'
        f"{'  # ' + _where(namespace).strip() if namespace else ''}"
        for (group, resource, namespace), found in verbs.items()
    ]


def _expanded(rules: Iterable[PolicyRule], namespaces: Iterable[str]) -> Iterator[Permission]:
    places = tuple(namespaces)
    for rule in rules:
        for resource in rule.resources:
            for verb in rule.verbs:
                for place in places:
                    yield Permission(verb, rule.group, resource, place, next(iter(rule.names), ""))


def _where(namespace: str) -> str:
    return f" in namespace {namespace}" if namespace else ""
