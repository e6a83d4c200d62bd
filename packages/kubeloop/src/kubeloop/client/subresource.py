"""Parts of an object that are served under its path: `status`, `scale`, `eviction`, `token`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar, Unpack

from kubeloop.client import request as requests
from kubeloop.client.pipeline import ObjectCalls, RequestPipeline, WriteOptions

if TYPE_CHECKING:
    from kubeloop.client.request import ResourceScope
    from kubeloop.objects.codec import Codec
    from kubeloop.objects.patches import Patch

S = TypeVar("S")


class Subresource(Generic[S]):
    """One subresource of one resource; its documents are of type S."""

    def __init__(
        self, *, name: str, scope: ResourceScope, codec: Codec[S], pipeline: RequestPipeline
    ) -> None:
        requests.check_subresource(name)
        self._name = name
        self._scope = scope
        self._codec = codec
        self._calls = ObjectCalls(pipeline, codec)

    def __repr__(self) -> str:
        return f"<Subresource {self._scope.gvr}/{self._name}>"

    async def get(
        self, name: str, *, namespace: str | None = None, timeout: float | None = None
    ) -> S:
        """Read the subresource of one object."""
        request = requests.get(self._path(name, namespace))
        with self._scope.hints(namespace):
            return await self._calls.call(request, timeout=timeout)

    async def replace(
        self, obj: S, *, namespace: str | None = None, **options: Unpack[WriteOptions]
    ) -> S:
        """Write it whole; with a resourceVersion only onto the version that was read."""
        access = self._codec.access
        resource_path = self._scope.resource_path(namespace, access.namespace(obj))
        path = resource_path.item(access.name(obj), self._name)
        return await self._calls.write("PUT", path, self._codec.encode(obj), options)

    async def create(
        self, name: str, obj: S, *, namespace: str | None = None, **options: Unpack[WriteOptions]
    ) -> S:
        """Post a document to it, as an eviction or a token request is."""
        path = self._path(name, namespace)
        with self._scope.hints(namespace):
            return await self._calls.write("POST", path, self._codec.encode(obj), options)

    async def patch(
        self,
        name: str,
        patch: Patch,
        *,
        namespace: str | None = None,
        force: bool = False,
        **options: Unpack[WriteOptions],
    ) -> S:
        """Change it by a patch; `force` is for an `ApplyPatch` that takes fields from others."""
        path, kind = self._path(name, namespace), patch.content_type
        with self._scope.hints(namespace):
            return await self._calls.write(
                "PATCH", path, patch.body, options, content_type=kind, force=force
            )

    def _path(self, name: str, namespace: str | None) -> str:
        return self._scope.resource_path(namespace).item(name, self._name)
