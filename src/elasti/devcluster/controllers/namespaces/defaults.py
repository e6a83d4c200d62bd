"""What every namespace has: a ServiceAccount `default`, and the certificate of the API server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from elasti.devcluster.controllers.namespaces.objects import (
    CONFIG_MAPS,
    NAMESPACES,
    SERVICE_ACCOUNTS,
    ConfigMap,
    Namespace,
)
from elasti.devcluster.controllers.parts import Part
from elasti.devcluster.controllers.pod_control import is_namespace_ending
from kubeloop.client.errors import AlreadyExists, ApiError
from kubeloop.controller.mapping import map_func
from kubeloop.controller.reconcile import Request
from kubeloop.objects.meta import STRUCT_ACCESS, PartialObjectMetadata
from kubeloop.objects.patches import MergePatch

if TYPE_CHECKING:
    from elasti.devcluster.controllers.hub import Hub
    from kubeloop.client.resource import Resource
    from kubeloop.objects.meta import JsonObject

ROOT_CA = "kube-root-ca.crt"
_NOTE = "kubernetes.io/description"
_DESCRIPTION = (
    "Contains a CA bundle that can be used to verify the kube-apiserver when using internal"
    " endpoints such as the internal service IP or kubernetes.default.svc."
)


class ServiceAccounts:
    """Makes the account that pods have unless they name another."""

    def __init__(self, hub: Hub) -> None:
        self._namespaces = hub.informer(NAMESPACES, Namespace)
        self._accounts = hub.informer(SERVICE_ACCOUNTS, PartialObjectMetadata)
        self._writer = hub.resource(SERVICE_ACCOUNTS)

    async def __call__(self, request: Request) -> None:
        """Make it where it is missing."""
        namespace = self._namespaces.lister.find("", request.name)
        if namespace is None or namespace.is_ending:
            return
        if self._accounts.lister.find(request.name, "default") is None:
            await _create(
                self._writer,
                {
                    "apiVersion": "v1",
                    "kind": "ServiceAccount",
                    "metadata": {"name": "default", "namespace": request.name},
                },
            )


class RootCertificates:
    """Publishes the server's certificate authority in every namespace."""

    def __init__(self, hub: Hub, certificate: str) -> None:
        self._certificate = certificate
        self._namespaces = hub.informer(NAMESPACES, Namespace)
        self.maps = hub.factory.informer(
            CONFIG_MAPS, ConfigMap, field_selector=f"metadata.name={ROOT_CA}"
        )
        self._writer = hub.resource(CONFIG_MAPS)

    async def __call__(self, request: Request) -> None:
        """Make it where it is missing, mend it where it was changed."""
        namespace = self._namespaces.lister.find("", request.name)
        if namespace is None or namespace.is_ending:
            return
        data = {"ca.crt": self._certificate}
        present = self.maps.lister.find(request.name, ROOT_CA)
        if present is None:
            metadata = {
                "name": ROOT_CA,
                "namespace": request.name,
                "annotations": {_NOTE: _DESCRIPTION},
            }
            await _create(
                self._writer,
                {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data},
            )
        elif present.data != data:
            wrong = {name: None for name in present.data or () if name not in data}
            patch = MergePatch({"data": {**wrong, **data}})
            await self._writer.patch(ROOT_CA, patch, namespace=request.name)


async def _create(resource: Resource[JsonObject], document: JsonObject) -> None:
    try:
        await resource.create(document)
    except AlreadyExists:
        return
    except ApiError as error:
        if not is_namespace_ending(error):
            raise


def make_accounts(hub: Hub) -> Part:
    """Return the controller of ServiceAccounts."""
    part = Part.of("serviceaccount", ServiceAccounts(hub))
    part.controller.watch(hub.informer(NAMESPACES, Namespace))
    accounts = hub.informer(SERVICE_ACCOUNTS, PartialObjectMetadata)
    part.controller.watch(accounts, mapping=map_func(_to_namespace))
    return part


def make_certificates(hub: Hub, certificate: str) -> Part:
    """Return the controller of root certificates."""
    reconciler = RootCertificates(hub, certificate)
    part = Part.of("root-ca", reconciler)
    part.controller.watch(hub.informer(NAMESPACES, Namespace))
    part.controller.watch(reconciler.maps, mapping=map_func(_to_namespace))
    return part


def _to_namespace(obj: Any) -> list[Request]:
    return [Request("", STRUCT_ACCESS.namespace(obj))]
