"""`elasti diff`: what an ElastiTemplate would change, before it is applied."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from elasti.cli import options
from elasti.cli.exits import ExitCode, Failure
from elasti.cli.rendering import counted, echo

if TYPE_CHECKING:
    from elasti.cli.cluster import AccessOptions
    from kubeloop.client import Client
    from kubeloop.objects.meta import JsonObject


@click.command("diff")
@click.option(
    "-f",
    "--filename",
    "source",
    type=click.Path(dir_okay=False, allow_dash=True),
    required=True,
    help="The ElastiTemplate, as YAML or JSON; - is standard input.",
)
@options.namespace_option()
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="All namespaces.")
@options.elasti_namespace_option
@options.cluster_options
def command(
    *,
    source: str,
    namespace: str | None,
    everywhere: bool,
    elasti_namespace: str,
    access: AccessOptions,
) -> None:
    """Show what an ElastiTemplate would change in the ElastiServices that use it.

    The API server computes the result without storing it, with its defaults and its checks. A field that a person
    set stays theirs. You need the right to patch ElastiTemplates
    and ElastiServices.

    \b
    Examples:
      elasti diff -f template.yaml -A
    """
    from elasti.cli.running import run_to_end

    with click.open_file(source, "rb") as file:
        template = _template(file.read())
    where = "" if everywhere else namespace
    run_to_end(lambda: _show(access, template, where, elasti_namespace))


def _template(data: bytes) -> JsonObject:
    """Raises Failure."""
    import yaml

    from elasti.api.names import TEMPLATE_KIND

    try:
        found = yaml.safe_load(data)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise Failure(f"the file is not YAML: {error}", code=ExitCode.USAGE) from error
    is_named = isinstance(found, dict) and (found.get("metadata") or {}).get("name")
    if not is_named or found.get("kind") != TEMPLATE_KIND:
        raise Failure(
            f"the file must have one {TEMPLATE_KIND} with metadata.name", code=ExitCode.USAGE
        )
    return dict(found)


async def _show(
    access: AccessOptions, template: JsonObject, namespace: str | None, elasti_namespace: str
) -> None:
    """Print the changes. Raises Failure and KubeError."""
    from elasti.api.names import CLI_FIELD_MANAGER, KIND, TEMPLATES
    from elasti.cli.enrolled import enrolment_settings, surroundings
    from elasti.cli.running import connected
    from elasti.operator.enrolment.decide import decide

    name = template["metadata"]["name"]
    changed = same = left = 0
    async with connected(access) as client:
        await client.resource(TEMPLATES).apply(
            template, dry_run=True, force=True, field_manager=CLI_FIELD_MANAGER
        )
        _, observe_for = await enrolment_settings(client, elasti_namespace)
        where = client.namespace if namespace is None else namespace
        read = surroundings(client, where, elasti_namespace, observe_for, {name: template})
        found = [(one, around) async for around in read for one in around.services]
        for service, around in found:
            decision = decide(service, around)
            if decision.template != name or decision.existing is None:
                continue
            title = f"{service.metadata.namespace}/{service.metadata.name}"
            if decision.body is None:
                left += 1
                echo(f"{title}: {decision.message}")
            elif lines := await _changes(client, decision.body):
                changed += 1
                echo("\n".join((title, *lines)))
            else:
                same += 1
    echo(
        f"{counted(changed, KIND)} would change, {same} would not, {left} cannot."
        " The operator changes 10 a second; nothing was changed now.",
        err=True,
    )


async def _changes(client: Client, body: JsonObject) -> list[str]:
    from elasti.api.names import ELASTISERVICES
    from elasti.operator.enrolment.controller import apply_beside

    meta = body["metadata"]
    objects = client.resource(ELASTISERVICES)
    before = await objects.get(meta["name"], namespace=meta["namespace"])
    if scaled := before["spec"].get("autoscaler"):
        body["spec"]["autoscaler"] = scaled
    after = await apply_beside(objects, body, namespace=meta["namespace"], dry_run=True)
    old, new = _leaves(before["spec"]), _leaves(after["spec"])
    return [
        f"  {sign} {key}: {side[key]}"
        for key in sorted(old.keys() | new.keys())
        for sign, side in (("-", old), ("+", new))
        if key in side and old.get(key) != new.get(key)
    ]


def _leaves(value: JsonObject, at: str = "") -> dict[str, str]:
    """Return each field by its path, as JSON."""
    import msgspec

    found: dict[str, str] = {}
    for key, inner in value.items():
        if isinstance(inner, dict) and inner:
            found |= _leaves(inner, f"{at}{key}.")
        else:
            found[f"{at}{key}"] = msgspec.json.encode(inner).decode()
    return found
