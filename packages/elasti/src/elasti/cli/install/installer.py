"""Installing and upgrading, which are the same: survey, dry run, apply, wait, remove leftovers.

A dry run of everything comes first, so that a missing right, or an object that cannot become ours, is found before
anything has changed. Leftovers of an earlier installation go last, when no old pod depends on them.
"""

from __future__ import annotations

import dataclasses
import ipaddress
from typing import TYPE_CHECKING

from elasti.api.defaults import OPERATOR_PORT
from elasti.api.names import API_VERSION, GROUP, KIND, OPERATOR_SERVICE, PLURAL
from elasti.cli.exits import ExitCode, Failure
from elasti.cli.install.apply import AppliedObject, ApplyOutcome, ServerSideApplier, reference
from elasti.cli.install.bundle import bundle
from elasti.cli.install.choices import Choices, Program
from elasti.cli.install.inventory import (
    installed_operator,
    installed_operators,
    is_held,
    list_elastiservices,
    name_some,
    objects_of,
)
from elasti.cli.install.rollout import definition_served, programs_available
from elasti.cli.rendering import counted
from kubeloop.client.errors import Forbidden, NoMatch, NotFound
from kubeloop.client.request import get
from kubeloop.objects.core import SLICES, EndpointSlice
from kubeloop.objects.names import url_host

if TYPE_CHECKING:
    from elasti.cli.install.choices import Manifest
    from elasti.cli.install.inventory import InstalledObject, InstalledOperator
    from elasti.cli.rendering import Progress
    from kubeloop.client import Client
    from kubeloop.objects.meta import JsonObject

_URL = "ELASTI_OPERATOR_URL"
_DNS = "k8s-app=kube-dns"
# A dev cluster says here that it pulls no images: its pods run the `elasti` of its machine.
_DEV_CAPABILITIES = "/devkube"


@dataclasses.dataclass(eq=False)
class Installer:
    """One call of `elasti install`. Raises Failure, KubeError."""

    client: Client
    choices: Choices
    progress: Progress
    _: dataclasses.KW_ONLY
    from_helm: bool = False
    image_is_named: bool = True

    async def ask(self) -> None:
        """Show what would change, without changing anything."""
        previous = await self._refuse()
        asked = await self._dry_run()
        changed = [one for one in asked if one.outcome is not ApplyOutcome.UNCHANGED]
        for applied in changed:
            self._report(applied, would=True)
        if same := len(asked) - len(changed):
            self.progress.done(counted(same, "object"), ApplyOutcome.UNCHANGED.value)
        for found in await self._leftovers(previous):
            self.progress.done(str(found), "would be removed")

    async def install(self, *, wait: float | None) -> None:
        """Install; with `wait`, wait at most that many seconds until it works."""
        previous = await self._refuse()
        if wait is not None and not self.choices.with_definition:
            await self._need_definition()
        asked = await self._dry_run()
        leftovers = await self._leftovers(previous)
        if previous is not None:
            self._announce([found for found in asked if found.changes], leftovers)
        await self._apply(wait)
        if previous is not None and previous.helm_release:
            await self._let_helm_forget(previous.helm_release)
        if wait is None:
            for found in leftovers:
                self.progress.done(
                    str(found), "is no longer needed; install without --no-wait to remove it"
                )
            return
        await programs_available(self.client, self.choices, wait, self.progress)
        for found in leftovers:
            await self._remove(found)

    async def _refuse(self) -> InstalledOperator | None:
        """Return the present installation. Raises Failure if it must not be changed this way."""
        previous = await installed_operator(self.client, self.choices.namespace)
        if previous is not None and previous.helm_release and not self.from_helm:
            raise _of_helm(previous)
        # Two operators would undo each other's work.
        for other in await installed_operators(self.client):
            if other.namespace == self.choices.namespace:
                continue
            if other.overlaps(self.choices.watch_namespaces):
                raise _rival(other)
        await self._refuse_to_abandon(previous)
        await self._refuse_to_strand()
        if not self.image_is_named and await self._pulls_images():
            raise Failure(
                f"--image is missing: {self.choices.image} is not published, so nodes cannot pull it",
                remedy="Build one from the Dockerfile, push it, and name it: elasti install --image"
                " registry.example.com/elasti:1",
            )
        self.choices = await self._reaching_server()
        return previous

    async def _pulls_images(self) -> bool:
        try:
            await self.client.send(get(_DEV_CAPABILITIES))
        except (Forbidden, NotFound):
            return True
        return False

    async def _reaching_server(self) -> Choices:
        """Return the choices with the API server's own port, which policies must let through."""
        slices = self.client.resource(SLICES, EndpointSlice, namespace="default")
        try:
            found = (await slices.get("kubernetes")).ports or ()
        except (Forbidden, NotFound):
            found = ()
        ports = dict.fromkeys((*self.choices.api_ports, *(p.port for p in found if p.port)))
        return dataclasses.replace(self.choices, api_ports=tuple(ports))

    async def _dry_run(self) -> list[AppliedObject]:
        """Ask the server for everything, so that a refusal comes before the first change."""
        asking = ServerSideApplier(self.client, dry_run=True)
        parts = await self._served(await self._addressed())
        return [await asking.apply(part.obj) for part in parts]

    async def _served(self, choices: Choices) -> list[Manifest]:
        """Return the parts, without those that an older server cannot have."""
        found, missing = [], set()
        for part in bundle(choices):
            if part.needs is not None and part.needs not in missing:
                try:
                    await self.client.mapper.by_kind(*part.needs)
                except NoMatch:
                    missing.add(part.needs)
            if part.needs not in missing:
                found.append(part)
        return found

    def _announce(self, changed: list[AppliedObject], leftovers: list[InstalledObject]) -> None:
        if not changed and not leftovers:
            return
        self.progress.say(f"This changes Elasti in namespace {self.choices.namespace}:")
        for applied in changed:
            self.progress.say(f"  {applied.ref}")
            for change in applied.changes:
                self.progress.say(f"    {change}")
        for found in leftovers:
            self.progress.say(f"  {found} is no longer needed")

    async def _let_helm_forget(self, release: str) -> None:
        """Remove Helm's record of a release whose objects are ours now."""
        secrets = self.client.resource("v1/secrets", namespace=self.choices.namespace)
        selector = f"owner=helm,name={release}"
        for name in [item["metadata"]["name"] async for item in secrets.items(selector=selector)]:
            await secrets.delete(name)
        self.progress.done(f"Helm release {release}", "removed from Helm's records")

    async def _apply(self, wait: float | None) -> None:
        applier = ServerSideApplier(self.client, from_helm=self.from_helm)
        for part in await self._served(self.choices):
            if part.obj["kind"] != "Deployment":
                self._report(await applier.apply(part.obj))
            if part.obj["kind"] == "CustomResourceDefinition" and wait is not None:
                await definition_served(self.client, wait)
        for part in bundle(await self._addressed()):
            if part.obj["kind"] == "Deployment":
                self._report(await applier.apply(part.obj))

    async def _addressed(self) -> Choices:
        """Return the choices; if the cluster has no DNS, with the operator's address in them."""
        given = self.choices.variables.get(Program.RESOLVER, {})
        if _URL in given or await self._has_dns():
            return self.choices
        services = self.client.resource("v1/services", namespace=self.choices.namespace)
        try:
            address = ipaddress.ip_address(
                (await services.get(OPERATOR_SERVICE))["spec"]["clusterIP"]
            )
        except NotFound:
            # A dry run before there is anything.
            return self.choices
        host = url_host(str(address))
        return dataclasses.replace(self.choices, operator_url=f"http://{host}:{OPERATOR_PORT}")

    async def _has_dns(self) -> bool:
        services = self.client.resource("v1/services", namespace="kube-system")
        try:
            return bool(await services.items(selector=_DNS).to_list())
        except Forbidden:
            return True

    async def _refuse_to_abandon(self, previous: InstalledOperator | None) -> None:
        """Raise Failure if a sleeping target would no longer be watched: it would sleep indefinitely."""
        if previous is None or not self.choices.watch_namespaces:
            return
        watched = {*self.choices.watch_namespaces}
        dropped = [name for name in previous.watches if name not in watched]
        if previous.watches and not dropped:
            return
        found = await list_elastiservices(self.client, dropped) or []
        left = [es for es in found if is_held(es) and es["metadata"]["namespace"] not in watched]
        if left:
            raise _abandoned(left)

    async def _refuse_to_strand(self) -> None:
        """Raise Failure if targets doze, and the new operator could not restore their requests."""
        if self.choices.doze and not self.choices.image_is_older:
            return
        found = await list_elastiservices(self.client, self.choices.watch_namespaces) or []
        if dozing := [es for es in found if (es.get("status") or {}).get("doze")]:
            raise _stranded(dozing, self.choices)

    async def _need_definition(self) -> None:
        """Without it the programs never get ready, and the wait would be without effect. Raises Failure."""
        try:
            await self.client.mapper.by_kind(API_VERSION, KIND)
        except NoMatch:
            raise Failure(
                f"this cluster has no {PLURAL}.{GROUP}, and --no-crd leaves it out",
                code=ExitCode.NOT_INSTALLED,
                remedy="An administrator applies it: elasti crd | kubectl apply --server-side -f -\n"
                "With --no-wait that may come later.",
            ) from None

    async def _leftovers(self, previous: InstalledOperator | None) -> list[InstalledObject]:
        watched = (*self.choices.watch_namespaces, *(previous.watches if previous else ()))
        wanted = {reference(part.obj) for part in bundle(self.choices)}
        return [
            found
            async for found in objects_of(self.client, self.choices.namespace, watched)
            if str(found) not in wanted
        ]

    async def _remove(self, found: InstalledObject) -> None:
        resource = self.client.resource(found.kind.resource)
        try:
            await resource.delete(found.name, namespace=found.namespace or None)
        except NotFound:
            return
        self.progress.done(str(found), ApplyOutcome.REMOVED.value)

    def _report(self, applied: AppliedObject, *, would: bool = False) -> None:
        word = applied.outcome.value
        self.progress.done(applied.ref, f"would be {word}" if would else word)
        if would:
            for change in applied.changes:
                self.progress.say(f"  {change}")
            if applied.unchecked:
                self.progress.say(f"  not checked: {applied.unchecked}")


def _abandoned(left: list[JsonObject]) -> Failure:
    return Failure(
        f"no operator would watch these ElastiServices: {name_some(left)}",
        remedy="Watch their namespaces too (--watch-namespace), or delete them first; deleting wakes"
        " their targets.",
    )


def _stranded(dozing: list[JsonObject], choices: Choices) -> Failure:
    what = f"--image {choices.image} is older than this command" if choices.doze else "--no-doze"
    return Failure(
        f"{what}, and these targets doze; their requests would stay small: {name_some(dozing)}",
        remedy="Suspend them first (elasti suspend), or set their spec.sleep.mode to Zero, and try again when"
        " they are awake.",
    )


def _of_helm(found: InstalledOperator) -> Failure:
    release, namespace = found.helm_release, found.namespace
    return Failure(
        f"Elasti in namespace {namespace} is the Helm release {release}",
        remedy=f"Upgrade it with Helm: helm upgrade {release} CHART --namespace {namespace}\n"
        f"Or take it over, with the options that its values have: elasti install --namespace"
        f" {namespace} --from-helm\nAdd --dry-run to see the changes first. Objects that only the chart has"
        " (monitors, alerts, dashboard) stay.",
    )


def _rival(other: InstalledOperator) -> Failure:
    what = "Elasti" if other.is_ours else "KubeElasti"
    where = f"watches {', '.join(other.watches)}" if other.watches else "watches every namespace"
    remedy = (
        f"It is the Helm release {other.helm_release}: upgrade that one, or remove it first: helm"
        f" uninstall {other.helm_release} --namespace {other.namespace}"
        if other.helm_release
        else f"Upgrade that one: elasti install --namespace {other.namespace}\n"
        f"Or remove it first: elasti uninstall --namespace {other.namespace}"
        if other.is_ours
        else f"Take its place: elasti install --namespace {other.namespace}, where one lease keeps the"
        " two from working at the same time"
    )
    return Failure(
        f"{what} is installed in namespace {other.namespace} and {where}: two operators would undo"
        " each other's work",
        remedy=remedy,
    )
