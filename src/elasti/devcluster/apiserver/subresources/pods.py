"""Bindings put pods on nodes, evictions ask them to leave."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import msgspec

from elasti.devcluster.apiserver import calls, status
from elasti.devcluster.apiserver.answers import Answer
from elasti.devcluster.apiserver.deletion import DeleteOptions, Deleter
from elasti.devcluster.apiserver.kinds.workloads import selects

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elasti.devcluster.apiserver.calls import Call
    from elasti.devcluster.apiserver.writes import Writer
    from kubeloop.objects.meta import JsonObject

_DONE = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


class Binding:
    """Answers `pods/binding`."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def answer(self, call: Call) -> Answer:
        """Put a pod on a node, once."""
        if call.attributes.verb != "create":
            raise status.method_not_allowed()
        record = self._writer.existing(call)
        body = calls.read_body(call)
        metadata = body.get("metadata")
        if not isinstance(metadata, dict) or metadata.get("name") != call.name:
            raise status.bad_request("name in URL does not match name in Binding object")
        target = body.get("target")
        node = target.get("name") if isinstance(target, dict) else None
        if not isinstance(node, str) or not node:
            raise status.bad_request("binding: target.name must be the name of a node")
        pod = record.decode()
        if pod["metadata"].get("deletionTimestamp"):
            raise call.resource.conflict(
                call.name, f"pod {call.name} is being deleted, cannot be assigned to a host"
            )
        assigned = (pod.get("spec") or {}).get("nodeName")
        if assigned:
            raise call.resource.conflict(
                call.name, f'pod {call.name} is already assigned to node "{assigned}"'
            )
        self._writer.modify(call, record, lambda obj: self._bind(obj, node))
        return Answer(body=msgspec.json.encode(_DONE), code=201)

    def _bind(self, pod: JsonObject, node: str) -> None:
        pod.setdefault("spec", {})["nodeName"] = node
        state = pod.setdefault("status", {})
        others = [c for c in state.get("conditions") or [] if c.get("type") != "PodScheduled"]
        since = self._writer.stamps.now()
        condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": since}
        state["conditions"] = [*others, condition]


_BUDGETS = "policy/poddisruptionbudgets"


class Eviction:
    """Answers `pods/eviction`: a deletion that disruption budgets may refuse for now."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._deleter = Deleter(writer)

    def answer(self, call: Call) -> Answer:
        """Delete the pod, or say 429."""
        if call.attributes.verb != "create":
            raise status.method_not_allowed()
        record = self._writer.existing(call)
        body = calls.read_body(call)
        pod = record.decode()
        counted = (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")
        if counted:
            self._ask_budgets(call, pod)
        options = _options(body)
        if options.dry_run:
            call = dataclasses.replace(call, query={**call.query, "dryRun": "All"})
        self._deleter.delete(call, record, options)
        if counted and not call.dry_run:
            self._spend(call.namespace, pod)
        return Answer(body=msgspec.json.encode(_DONE), code=201)

    def _ask_budgets(self, call: Call, pod: JsonObject) -> None:
        for budget in self._budgets(call.namespace, pod):
            state = budget.get("status") or {}
            if state.get("disruptionsAllowed", 0) > 0:
                continue
            name = budget["metadata"]["name"]
            needs, has = state.get("desiredHealthy", 0), state.get("currentHealthy", 0)
            raise status.failure(
                429,
                "TooManyRequests",
                "Cannot evict pod as it would violate the pod's disruption budget.",
                details={
                    "causes": [
                        {
                            "reason": "DisruptionBudget",
                            "message": f"The disruption budget {name} needs {needs} healthy pods and"
                            f" has {has} currently",
                        }
                    ]
                },
            )

    def _spend(self, namespace: str, pod: JsonObject) -> None:
        """Count the eviction at once, so that the next one does not outrun the controller."""
        store = self._writer.store
        collection = store.collection(_BUDGETS)
        for budget in list(self._budgets(namespace, pod)):
            state = budget["status"]
            state["disruptionsAllowed"] -= 1
            evicted = {pod["metadata"]["name"]: self._writer.stamps.now()}
            state["disruptedPods"] = {**state.get("disruptedPods", {}), **evicted}
            store.put(collection, f"{namespace}/{budget['metadata']['name']}", budget)

    def _budgets(self, namespace: str, pod: JsonObject) -> Iterator[JsonObject]:
        labels = pod["metadata"].get("labels") or {}
        for record in self._writer.store.collection(_BUDGETS).scan(namespace):
            budget = record.decode()
            selector = (budget.get("spec") or {}).get("selector")
            if selector is not None and selects(selector, labels):
                yield budget


def _options(body: JsonObject) -> DeleteOptions:
    try:
        return msgspec.convert(body.get("deleteOptions") or {}, DeleteOptions)
    except msgspec.ValidationError as error:
        raise status.bad_request(f"eviction: deleteOptions cannot be read: {error}") from error


class Finalize:
    """Answers `namespaces/finalize`: the namespace controller's word that it is empty."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def answer(self, call: Call) -> Answer:
        """Set the finalizers; a namespace that is going and has none is gone."""
        if call.attributes.verb != "update":
            raise status.method_not_allowed()
        record = self._writer.existing(call)
        body = calls.read_body(call)
        spec = body.get("spec")
        finalizers = spec.get("finalizers") if isinstance(spec, dict) else None
        names = [name for name in finalizers or [] if isinstance(name, str)]

        def change(obj: JsonObject) -> None:
            obj["spec"] = {"finalizers": names} if names else {}

        written = self._writer.modify(call, record, change)
        return Answer(body=msgspec.json.encode(written.obj))
