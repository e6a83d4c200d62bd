"""Where the files of volumes come from: ConfigMaps, Secrets, fields of the pod, tokens.

A node may read the objects that its own pods name, and no others: so each is watched by itself, as
long as a pod here needs it. A pod's `PodReferences` are read synchronously from those caches; a change
wakes the pods that use the object. ServiceAccount tokens are requested, and renewed in good time.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import PurePosixPath

import msgspec

from devkube.kubelet.environment import ConfigurationError, DownwardContext, read_field
from devkube.kubelet.pod_types import (
    DownwardVolume,
    KeyToPath,
    KubeletPod,
    Projection,
    TokenProjection,
    Volume,
    named_objects,
)
from kubeloop.aio.clock import Clock
from kubeloop.client.client import Client
from kubeloop.client.errors import KubeError
from kubeloop.informer.factory import SharedInformerFactory
from kubeloop.informer.shared_informer import SharedInformer
from kubeloop.objects.meta import SlimMeta
from kubeloop.objects.times import parse_time

_KINDS = {"ConfigMap": "v1/configmaps", "Secret": "v1/secrets"}
_ROTATED_AFTER = 0.8
"""Of its life, when a token is replaced."""
_RETRY = 10.0


@dataclasses.dataclass(frozen=True, slots=True)
class VolumeFile:
    """One file of a volume."""

    data: bytes
    mode: int


def payload(
    volume: Volume,
    facts: DownwardContext,
    objects: PodReferences,
    tokens: Mapping[TokenProjection, str],
) -> dict[str, VolumeFile] | None:
    """Return the files; None for a volume whose data is not ours to write.

    Raises ConfigurationError if something is missing.
    """
    if volume.projected is not None:
        files: dict[str, VolumeFile] = {}
        for part in volume.projected.sources:
            files |= _projected(part, facts, objects, tokens, volume.projected.default_mode)
        return files
    return _files(volume, facts, objects, None)


def _projected(
    part: Projection,
    facts: DownwardContext,
    objects: PodReferences,
    tokens: Mapping[TokenProjection, str],
    mode: int,
) -> dict[str, VolumeFile]:
    if part.service_account_token is not None:
        token = tokens[part.service_account_token]
        return {_safe(part.service_account_token.path): VolumeFile(token.encode(), mode)}
    return _files(part, facts, objects, mode) or {}


def _files(
    part: Volume | Projection, facts: DownwardContext, objects: PodReferences, mode: int | None
) -> dict[str, VolumeFile] | None:
    """Return what a volume and a part of a projected one have in common; `mode` is the part's."""
    if part.downward_api is not None:
        chosen = part.downward_api.default_mode if mode is None else mode
        return _downward(part.downward_api, facts, chosen)
    for kind, source in named_objects(part.config_map, part.secret):
        optional = bool(source.optional)
        found = objects.content(kind, source.name, optional=optional)
        chosen = source.default_mode if mode is None else mode
        return _selected(found, source.items, chosen, optional=optional)
    return None


def _selected(
    found: Mapping[str, bytes], items: tuple[KeyToPath, ...] | None, mode: int, *, optional: bool
) -> dict[str, VolumeFile]:
    if not items:
        return {key: VolumeFile(value, mode) for key, value in found.items()}
    files = {}
    for item in items:
        if item.key in found:
            chosen = mode if item.mode is None else item.mode
            files[_safe(item.path)] = VolumeFile(found[item.key], chosen)
        elif not optional:
            raise ConfigurationError(f"references non-existent config key: {item.key}")
    return files


def _downward(source: DownwardVolume, facts: DownwardContext, mode: int) -> dict[str, VolumeFile]:
    files = {}
    for item in source.items:
        if item.field_ref is not None:
            text = read_field(facts, item.field_ref.field_path)
            chosen = mode if item.mode is None else item.mode
            files[_safe(item.path)] = VolumeFile(text.encode(), chosen)
    return files


def _safe(path: str) -> str:
    """Return a path that stays inside the volume. Raises ConfigurationError."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or not pure.parts or pure.parts[0].startswith(".."):
        raise ConfigurationError(f"invalid path in volume: {path}, must stay inside it")
    return str(pure)


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


@dataclasses.dataclass(eq=False)
class PodReferences:
    """The references of one pod."""

    namespace: str
    informers: Mapping[tuple[str, str], SharedInformer[ConfigMap | Secret]]

    def describe(self, kind: str, name: str) -> str:
        """Name an object in a message."""
        return f"{kind} {self.namespace}/{name}"

    def content(self, kind: str, name: str, *, optional: bool) -> Mapping[str, bytes]:
        """Return the content; nothing if it is missing and optional, else ConfigurationError."""
        informer = self.informers.get((kind, name))
        found = informer.lister.find(self.namespace, name) if informer is not None else None
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
        self, pod: KubeletPod, changed: Callable[[], None]
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


def named_by(pod: KubeletPod) -> Iterator[tuple[str, str]]:
    """Yield kind and name of every object that a pod refers to."""
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        for source in container.env_from:
            for kind, whole in named_objects(source.config_map_ref, source.secret_ref):
                yield kind, whole.name
        for origin in (variable.value_from for variable in container.env):
            if origin is not None:
                for kind, key in named_objects(origin.config_map_key_ref, origin.secret_key_ref):
                    yield kind, key.name
    for volume in pod.spec.volumes:
        yield from _in_volume(volume)


def _in_volume(volume: Volume) -> Iterator[tuple[str, str]]:
    parts: list[Volume | Projection] = [volume]
    parts += volume.projected.sources if volume.projected is not None else ()
    for part in parts:
        for kind, source in named_objects(part.config_map, part.secret):
            yield kind, source.name


@dataclasses.dataclass(frozen=True, slots=True)
class _Token:
    text: str
    renew_at: float


class PodTokens:
    """The tokens of one pod, one for each projection."""

    def __init__(self, client: Client, pod: KubeletPod, *, clock: Clock) -> None:
        self._requests = client.resource("v1/serviceaccounts").subresource("token")
        self._pod = pod
        self._clock = clock
        self._tokens: dict[TokenProjection, _Token] = {}

    async def current(self) -> dict[TokenProjection, str]:
        """Return every token; new ones if they are due. Raises ConfigurationError.

        If a new one cannot be requested, the old one is returned while there is one.
        """
        now = asyncio.get_running_loop().time()
        for wanted in set(projections(self._pod)):
            known = self._tokens.get(wanted)
            if known is not None and now < known.renew_at:
                continue
            try:
                self._tokens[wanted] = await self._request(wanted)
            except KubeError as error:
                if known is None:
                    raise ConfigurationError(f"failed to fetch token: {error}") from error
                self._tokens[wanted] = _Token(known.text, now + _RETRY)
        return {wanted: token.text for wanted, token in self._tokens.items()}

    @property
    def renew_at(self) -> float | None:
        """When the first of them is due (loop time); None if there are no items."""
        return min((token.renew_at for token in self._tokens.values()), default=None)

    async def _request(self, wanted: TokenProjection) -> _Token:
        meta = self._pod.metadata
        bound = {"apiVersion": "v1", "kind": "Pod", "name": meta.name, "uid": meta.uid}
        spec = {"expirationSeconds": wanted.expiration_seconds, "boundObjectRef": bound}
        if wanted.audience:
            spec["audiences"] = [wanted.audience]
        answer = await self._requests.create(
            self._pod.spec.service_account_name or "default",
            {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec},
            namespace=meta.namespace,
        )
        status = answer["status"]
        life = (parse_time(status["expirationTimestamp"]) - self._clock.now()).total_seconds()
        loop = asyncio.get_running_loop()
        return _Token(status["token"], loop.time() + max(1.0, _ROTATED_AFTER * life))


def projections(pod: KubeletPod) -> Iterator[TokenProjection]:
    """Yield every token that a pod's volumes ask for."""
    for volume in pod.spec.volumes:
        for source in volume.projected.sources if volume.projected is not None else ():
            if source.service_account_token is not None:
                yield source.service_account_token
