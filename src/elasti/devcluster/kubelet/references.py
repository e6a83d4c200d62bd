"""ConfigMaps and Secrets that pods refer to.

A node may read the objects that its own pods name, and no others: so each is watched by itself, as
long as a pod here needs it. A pod's `References` are read synchronously from those caches; a change
wakes the pods that use the object.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Protocol

import msgspec

from elasti.devcluster.kubelet.environment import ConfigurationError
from kubeloop.informer.factory import SharedInformerFactory
from kubeloop.objects.meta import SlimMeta

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping

    from elasti.devcluster.kubelet.objects.containers import Container
    from elasti.devcluster.kubelet.objects.pods import Pod
    from elasti.devcluster.kubelet.objects.volumes import Volume
    from kubeloop.client.client import Client
    from kubeloop.informer.shared_informer import SharedInformer

_KINDS = {"ConfigMap": "v1/configmaps", "Secret": "v1/secrets"}


class ConfigMap(msgspec.Struct, rename="camel", frozen=True):
    """A ConfigMap."""

    metadata: SlimMeta
    data: dict[str, str] | None = None
    binary_data: dict[str, bytes] | None = None

    @property
    def content(self) -> dict[str, bytes]:
        """Every key's bytes."""
        text = {key: value.encode() for key, value in (self.data or {}).items()}
        return text | (self.binary_data or {})


class Secret(msgspec.Struct, frozen=True):
    """A Secret."""

    metadata: SlimMeta
    data: dict[str, bytes] | None = None

    @property
    def content(self) -> dict[str, bytes]:
        """Every key's bytes."""
        return self.data or {}


class References(Protocol):
    """What a pod's ConfigMaps and Secrets hold."""

    def config_map(self, name: str, *, optional: bool) -> Mapping[str, bytes]:
        """Return the content; nothing where it is missing and optional, else ConfigurationError."""

    def secret(self, name: str, *, optional: bool) -> Mapping[str, bytes]:
        """Return the content, likewise."""

    def describe(self, kind: str, name: str) -> str:
        """Name an object in a message."""


class PodReferences:
    """The references of one pod."""

    def __init__(
        self,
        namespace: str,
        informers: Mapping[tuple[str, str], SharedInformer[ConfigMap | Secret]],
    ) -> None:
        self._namespace = namespace
        self._informers = informers

    def config_map(self, name: str, *, optional: bool) -> Mapping[str, bytes]:
        """Return a ConfigMap's content."""
        return self._content("ConfigMap", name, optional=optional)

    def secret(self, name: str, *, optional: bool) -> Mapping[str, bytes]:
        """Return a Secret's content."""
        return self._content("Secret", name, optional=optional)

    def describe(self, kind: str, name: str) -> str:
        """Name an object in a message."""
        return f"{kind} {self._namespace}/{name}"

    def _content(self, kind: str, name: str, *, optional: bool) -> Mapping[str, bytes]:
        informer = self._informers.get((kind, name))
        found = informer.lister.find(self._namespace, name) if informer is not None else None
        if found is not None:
            return found.content
        if optional:
            return {}
        raise ConfigurationError(f'{kind.lower()} "{name}" not found')


class ObjectCache:
    """Watches what the pods of this node refer to; used while `running`."""

    def __init__(self, client: Client) -> None:
        self._factory = SharedInformerFactory(client, name="kubelet references", collector=False)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the watches during a block."""
        async with self._factory.running():
            yield

    @contextlib.asynccontextmanager
    async def references(
        self, pod: Pod, changed: Callable[[], None]
    ) -> AsyncIterator[PodReferences]:
        """Watch a pod's objects during a block; `changed` is called when one of them changes."""
        namespace = pod.metadata.namespace
        informers: dict[tuple[str, str], SharedInformer[ConfigMap | Secret]] = {}
        async with contextlib.AsyncExitStack() as stack:
            for kind, name in sorted(set(named_by(pod))):
                informer = self._informer(kind, namespace, name)
                informers[kind, name] = informer
                stack.push_async_callback(self._factory.release, informer)
                handle = informer.add_handler(on_event=lambda _: changed(), name=pod.uid)
                stack.push_async_callback(informer.remove_handler, handle)
            self._factory.start()
            for informer in informers.values():
                await informer.gate.wait()
            yield PodReferences(namespace, informers)

    def _informer(self, kind: str, namespace: str, name: str) -> SharedInformer[ConfigMap | Secret]:
        shape: type[ConfigMap | Secret] = ConfigMap if kind == "ConfigMap" else Secret
        return self._factory.informer(
            _KINDS[kind], shape, namespace=namespace, field_selector=f"metadata.name={name}"
        )


def named_by(pod: Pod) -> Iterator[tuple[str, str]]:
    """Yield kind and name of every object that a pod refers to."""
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        yield from _in_container(container)
    for volume in pod.spec.volumes:
        yield from _in_volume(volume)


def _in_container(container: Container) -> Iterator[tuple[str, str]]:
    for source in container.env_from:
        if source.config_map_ref is not None:
            yield "ConfigMap", source.config_map_ref.name
        if source.secret_ref is not None:
            yield "Secret", source.secret_ref.name
    for variable in container.env:
        origin = variable.value_from
        if origin is not None and origin.config_map_key_ref is not None:
            yield "ConfigMap", origin.config_map_key_ref.name
        if origin is not None and origin.secret_key_ref is not None:
            yield "Secret", origin.secret_key_ref.name


def _in_volume(volume: Volume) -> Iterator[tuple[str, str]]:
    if volume.config_map is not None:
        yield "ConfigMap", volume.config_map.name
    if volume.secret is not None:
        yield "Secret", volume.secret.secret_name
    for source in volume.projected.sources if volume.projected is not None else ():
        if source.config_map is not None:
            yield "ConfigMap", source.config_map.name
        if source.secret is not None:
            yield "Secret", source.secret.name
