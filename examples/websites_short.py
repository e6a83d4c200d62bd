"""`websites.py` in sixty lines: the same resource, status, events, finalizer, election and probes."""

import msgspec

from kubeloop import Context, Operator, run
from kubeloop.controller import TerminalError
from kubeloop.crd import Column, custom_resource_definition
from kubeloop.objects.conditions import Condition
from kubeloop.objects.meta import ObjectMeta


class Spec(msgspec.Struct, frozen=True):
    """What a user writes."""

    text: str = ""


class Status(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What the operator reports."""

    page: str = ""
    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()


class Website(msgspec.Struct, frozen=True):
    """A page that is published."""

    metadata: ObjectMeta
    spec: Spec = Spec()
    status: Status = Status()


READY = Column("Ready", '.status.conditions[?(@.type=="Ready")].status')
CRD = custom_resource_definition(Website, "example.com/v1/websites", columns=(READY,))
websites = Operator(Website, "example.com/v1/websites", definition=CRD, owns=["v1/configmaps"])


@websites.reconcile
async def publish(site: Website, ctx: Context[Website]) -> None:
    """Make the ConfigMap be as the text says."""
    if len(site.spec.text) > 1000:
        message = f"spec.text has {len(site.spec.text)} characters; 1000 are the most"
        ctx.warning("TooLong", message)
        await ctx.report(Status(), Condition("Ready", "False", "TooLong", message))
        raise TerminalError(message)  # trying again cannot help: only a new text can
    meta, data = {"name": site.metadata.name}, {"index.html": f"<h1>{site.spec.text}</h1>"}
    await ctx.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data})
    await ctx.report(Status(page=site.metadata.name), Condition("Ready", "True", "Published"))


@websites.finalizer("example.com/websites")
async def take_down(site: Website, ctx: Context[Website]) -> None:
    """Say goodbye; the ConfigMap goes with its owner."""
    ctx.event("TakenDown", f"{site.metadata.name} is no longer published")


if __name__ == "__main__":
    run(websites, health_port=8082)
