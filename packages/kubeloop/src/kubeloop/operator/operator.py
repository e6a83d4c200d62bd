"""An operator: the objects of one kind, a function that reconciles one, and what the function works with."""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, cast, overload

import msgspec

from kubeloop.controller.controller import Controller
from kubeloop.controller.finalizers import Finalizers
from kubeloop.controller.predicates import Predicate, generation_changed
from kubeloop.controller.queue.priority_queue import PriorityQueue
from kubeloop.controller.reconcile import Request, Result, TerminalError, check_is_async
from kubeloop.controller.sources import for_owner
from kubeloop.controller.writes import ConsistencyGuard
from kubeloop.informer.handlers import Notification, Updated
from kubeloop.metrics.library import LibraryMetrics
from kubeloop.objects.codec import codec_for
from kubeloop.objects.conditions import Condition, with_condition
from kubeloop.objects.gvk import (
    GroupVersionKind,
    GroupVersionResource,
    ServedKind,
    resource_and_kind,
)
from kubeloop.objects.lazy import LazyObject
from kubeloop.objects.list_watch import MALFORMED
from kubeloop.objects.meta import JsonObject, PartialObjectMetadata, access_for
from kubeloop.objects.owners import kind_of, set_controller_reference
from kubeloop.objects.patches import ApplyPatch

if TYPE_CHECKING:
    from kubeloop.client.client import Client
    from kubeloop.controller.events.recorder import EventRecorder
    from kubeloop.informer.factory import SharedInformerFactory
    from kubeloop.informer.lister import Lister
    from kubeloop.informer.shared_informer import SharedInformer

T = TypeVar("T")
AppliedT = TypeVar("AppliedT")
K = TypeVar("K", bound=ServedKind)


class Context(Generic[T]):
    """What a reconcile function works with: one object, and the parts of the program.

    `object` is as the cache has it; never change it. Writes through `apply` and `report` are seen by
    the next reconcile: it is held back until the caches show them.
    """

    def __init__(self, work: _Work[T], request: Request, obj: T) -> None:
        self.object = obj
        self.request = request
        self.client = work.client
        self.recorder = work.recorder
        self._work = work

    async def apply(self, obj: AppliedT, *, owned: bool = True) -> AppliedT:
        """Make an object be so, by server-side apply under the operator's name.

        `obj` is a dictionary or a Struct that says what it is (apiVersion and kind), partial or whole;
        without a namespace it gets the reconciled object's. It is not changed. `owned` makes the
        reconciled object its controller: it is deleted with it, and its changes cause a reconcile if its
        kind is in `owns`. Raises `OwnershipError` for what cannot be owned, such as a cluster-scoped
        object by one in a namespace, and `KubeError`.
        """
        access, gvk = access_for(type(obj)), kind_of(obj)
        resource = await self.client.resource_for(gvk.api_version, gvk.kind, type(obj))
        own = self.request.namespace if resource.namespaced else ""
        wanted = _with_metadata(obj, access.namespace(obj) or own)
        if owned:
            set_controller_reference(wanted, self.object, self._work.gvk)
        made = await resource.apply(wanted, field_manager=self._work.name, force=True)
        self._work.wrote(self.request, resource.gvr, access.version(made))
        return made

    async def report(self, status: msgspec.Struct, *conditions: Condition) -> None:
        """Make this the object's status, unless it says so already.

        If the Struct has a field `conditions`, these are merged into those that are there, by type; if
        it has `observed_generation`, that is filled in. Fields that you leave out now are removed.
        """
        if not isinstance(status, msgspec.Struct):
            raise TypeError(f"report takes a Struct such as Status(), not {type(status).__name__}")
        meta, before = self._work.access, getattr(self.object, "status", None)
        fields, generation = type(status).__struct_fields__, meta.generation(self.object)
        changes: JsonObject = {}
        if "observed_generation" in fields:
            changes["observed_generation"] = generation
        if "conditions" in fields:
            given: Sequence[Condition] = getattr(status, "conditions", ())
            found = tuple(given or getattr(before, "conditions", None) or ())
            for condition in conditions:
                seen = msgspec.structs.replace(condition, observed_generation=generation)
                found = with_condition(found, seen, now=dt.datetime.now(dt.UTC))
            changes["conditions"] = found
        elif conditions:
            raise TypeError(
                f"{type(status).__name__} has no field conditions: tuple[Condition, ...]"
            )
        wanted = msgspec.structs.replace(status, **changes)
        if wanted == before:
            return
        content = {
            "apiVersion": self._work.gvk.api_version,
            "kind": self._work.gvk.kind,
            "metadata": {"name": self.request.name},
            "status": msgspec.to_builtins(wanted),
        }
        part = self.client.resource(self._work.gvr).subresource("status")
        written = await part.patch(
            self.request.name,
            ApplyPatch(content),
            namespace=self.request.namespace,
            field_manager=self._work.name,
            force=True,
        )
        self._work.wrote(self.request, self._work.gvr, written["metadata"]["resourceVersion"])

    def event(self, reason: str, message: str) -> None:
        """Record an Event about the object: `reason` is one CamelCase word, for machines."""
        self.recorder.normal(self.object, reason, message, gvk=self._work.gvk)

    def warning(self, reason: str, message: str) -> None:
        """Record a warning about the object."""
        self.recorder.warning(self.object, reason, message, gvk=self._work.gvk)

    @overload
    def lister(self, resource: type[K]) -> Lister[K]: ...

    @overload
    def lister(self, resource: str) -> Lister[Any]: ...

    def lister(self, resource: str | type[Any]) -> Lister[Any]:
        """Return the cache of a kind in `owns`: metadata only, unless a Struct was given there."""
        gvr, _ = resource_and_kind(resource, dict)
        if gvr not in self._work.owned:
            raise KeyError(f"{gvr} is not cached: name it in owns= of the Operator")
        return self._work.owned[gvr].lister


def _with_metadata(obj: AppliedT, namespace: str) -> AppliedT:
    """Return the object in a namespace, with metadata of its own to write into.

    Only the metadata is copied: a deep copy would keep two parts the same dictionary that are the
    same in `obj`, and a write into one would be sent in both.
    """
    if isinstance(obj, dict):
        placed = {"namespace": namespace} if namespace else {}
        return cast("AppliedT", obj | {"metadata": {**(obj.get("metadata") or {}), **placed}})
    whole: Any = obj
    metadata = msgspec.structs.replace(whole.metadata, namespace=namespace)
    return cast("AppliedT", msgspec.structs.replace(whole, metadata=metadata))


Handler: TypeAlias = Callable[[T, Context[T]], Awaitable[Result | None]]
Owned: TypeAlias = "str | type[Any] | tuple[str, type[Any]]"


class Operator(Generic[T]):
    """Reconciles the objects of one kind.

    `definition` is the CustomResourceDefinition to create and keep current, for a kind that is yours
    (`kubeloop.crd` makes one); without it the kind must be there. `owns` are the kinds that you
    create for an object: a path, of which only metadata is cached; a path and a Struct; or a class of
    kubeloop-kinds. Such a class needs no `resource`. Updates that do not change the generation are
    passed over, unless `predicates` say otherwise. An object that the Struct cannot hold is not
    reconciled before it changes; a log line, an Event and `result="terminal"` report it.
    """

    def __init__(
        self,
        kind: type[T],
        resource: str = "",
        *,
        definition: JsonObject | None = None,
        owns: Sequence[Owned] = (),
        name: str = "",
        kind_name: str = "",
        workers: int = 1,
        timeout: float | None = 60.0,
        predicates: Sequence[Predicate[T]] | None = None,
    ) -> None:
        if isinstance(owns, str):
            raise TypeError(f"owns={owns!r} is a string: give a list, as in owns=[{owns!r}]")
        codec_for(kind)  # refuses what has no metadata
        self.kind = kind
        self.gvr, _ = resource_and_kind(resource or cast("Any", kind), kind)
        said = getattr(kind, "kind", "")  # a class attribute, not the slot of a field
        kind_name = kind_name or (said if isinstance(said, str) else "") or kind.__name__
        if definition is not None:
            kind_name = definition["spec"]["names"]["kind"]
            if definition["metadata"]["name"] != f"{self.gvr.resource}.{self.gvr.group}":
                raise ValueError(
                    f"{self.gvr} is not of {definition['metadata']['name']}, its definition"
                )
        self.gvk = GroupVersionKind(self.gvr.group, self.gvr.version, kind_name)
        self.name = name or self.gvr.resource
        self.definition = definition
        self.owns = [_owned(one) for one in owns]
        self.workers = workers
        self.timeout = timeout
        self.predicates = [generation_changed()] if predicates is None else list(predicates)
        self.handler: Handler[T] | None = None
        self.finalizers: dict[str, Handler[T]] = {}

    def reconcile(self, function: Handler[T]) -> Handler[T]:
        """Decorate the function that compares and writes; it is not called for what is being deleted.

        It may be called at any time and any number of times, one call at a time for an object. It
        returns None, or a `Result` that asks for another look; an exception means "again, later each
        time", a `TerminalError` "not before it changes".
        """
        if self.handler is not None:
            raise ValueError(f"operator {self.name} has its reconcile function already")
        check_is_async(function)
        self.handler = function
        return function

    def finalizer(self, name: str) -> Callable[[Handler[T]], Handler[T]]:
        """Decorate what must succeed before an object goes; `name` is like `example.com/websites`."""
        if callable(name) or "/" not in name:
            raise ValueError(
                f"finalizer {name!r}: name it with a domain and a slash, as in"
                f" @finalizer('{self.gvr.group or 'example.com'}/{self.gvr.resource}')"
            )

        def register(function: Handler[T]) -> Handler[T]:
            if name in self.finalizers:
                raise ValueError(f"finalizer {name!r} is registered already")
            check_is_async(function)
            self.finalizers[name] = function
            return function

        return register

    def controller(
        self,
        client: Client,
        factory: SharedInformerFactory,
        recorder: EventRecorder,
        *,
        metrics: LibraryMetrics | None = None,
    ) -> Controller:
        """Return the controller, with its informers in the factory, for a manager of your own."""
        if self.handler is None:
            raise ValueError(f"operator {self.name} has no function: decorate one with @reconcile")
        counted = metrics or LibraryMetrics()
        cached = self._informer(factory)
        work = _Work(self, client, recorder, cached)
        controller = Controller(
            self.name,
            work.reconcile,
            workers=self.workers,
            timeout=self.timeout,
            queue=PriorityQueue(metrics=counted.queue(self.name)),
            consistency=work.guard,
            metrics=counted.controller(self.name),
        )
        controller.watch(cached, predicates=[_of_kind(self.kind, one) for one in self.predicates])
        for gvr, kind in self.owns:
            owned: SharedInformer[Any] = factory.informer(gvr, kind)
            controller.watch(owned, mapping=for_owner(self.gvk, controller_only=True))
            work.follow(gvr, owned)
        return controller

    def _informer(self, factory: SharedInformerFactory) -> SharedInformer[T]:
        kind: type[Any] = self.kind
        if issubclass(kind, dict | LazyObject | PartialObjectMetadata) or hasattr(kind, "salvaged"):
            return factory.informer(str(self.gvr), self.kind)
        decode = msgspec.json.Decoder(kind).decode

        def decoded(obj: LazyObject) -> Any:
            # One object that the Struct cannot hold would fail the list of all: it stays undecoded.
            try:
                return decode(obj.raw)
            except MALFORMED:
                return obj

        return cast("SharedInformer[T]", factory.informer(str(self.gvr), transform=decoded))


def _of_kind(kind: type[T], predicate: Predicate[T]) -> Predicate[T]:
    """Let pass what is not of the kind, for `reconcile` to report; ask the predicate about the rest."""

    def decide(event: Notification[T]) -> bool:
        found = (event.old, event.new) if isinstance(event, Updated) else (event.obj,)
        return not all(isinstance(obj, kind) for obj in found) or predicate(event)

    return decide


def _owned(one: Owned) -> tuple[GroupVersionResource, type[Any]]:
    if isinstance(one, tuple):
        return resource_and_kind(*one)
    return resource_and_kind(one, PartialObjectMetadata)


@dataclasses.dataclass(eq=False)
class _Work(Generic[T]):
    """One operator in one program: what its reconciles share."""

    operator: Operator[T]
    client: Client
    recorder: EventRecorder
    cached: SharedInformer[T]

    def __post_init__(self) -> None:
        self.name, self.gvr, self.gvk = self.operator.name, self.operator.gvr, self.operator.gvk
        self.access = access_for(self.operator.kind)
        self.owned: dict[GroupVersionResource, SharedInformer[Any]] = {}
        self.guard = ConsistencyGuard()
        self.guard.follow(self.gvr, self.cached.store)

    def follow(self, gvr: GroupVersionResource, informer: SharedInformer[Any]) -> None:
        """Read a kind's objects from this cache."""
        self.owned[gvr] = informer
        self.guard.follow(gvr, informer.store)

    def wrote(self, request: Request, gvr: GroupVersionResource, version: str) -> None:
        """Hold the next reconcile back until the cache shows a write, if there is one."""
        found = self.cached.lister.find(request.namespace, request.name)
        if found is not None and version and (gvr == self.gvr or gvr in self.owned):
            self.guard.wrote(request, self.access.uid(found), gvr, version)

    async def reconcile(self, request: Request) -> Result | None:
        obj = self.cached.lister.find(request.namespace, request.name)
        if obj is None:
            self.guard.clear(request)
            return None
        if not isinstance(obj, self.operator.kind):
            obj = self._decoded(cast("Any", obj))
        context = Context(self, request, obj)
        await self._finalize(obj, context)
        if self.access.is_deleting(obj):
            return None
        assert self.operator.handler is not None
        return await self.operator.handler(obj, context)

    def _decoded(self, obj: LazyObject) -> T:
        """Decode what the cache could not, for the error. Raises TerminalError."""
        kind = self.operator.kind
        try:
            return obj.decode(kind)
        except MALFORMED as error:
            message = f"the object does not fit {kind.__name__}: {error}"
            self.recorder.warning(obj, "Undecodable", message, gvk=self.gvk)
            raise TerminalError(message) from error

    async def _finalize(self, obj: T, context: Context[T]) -> None:
        calls = {
            name: functools.partial(_call, function, context)
            for name, function in self.operator.finalizers.items()
        }
        result = await Finalizers[T](calls).finalize(obj)
        if result.patch is not None:
            request = context.request
            written = await self.client.resource(self.gvr).patch(
                request.name, result.patch, namespace=request.namespace
            )
            self.wrote(request, self.gvr, written["metadata"]["resourceVersion"])
        result.check()


async def _call(function: Handler[T], context: Context[T], obj: T) -> None:
    await function(obj, context)
