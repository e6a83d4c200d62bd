"""`elasti describe`: everything you need when something is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from elasti.cli import options
from elasti.cli.completion import complete_names
from elasti.cli.rendering import echo, render

if TYPE_CHECKING:
    from elasti.cli.cluster import AccessOptions


@click.command("describe")
@click.argument("name", type=options.name, shell_complete=complete_names)
@options.namespace_option()
@options.output_option("text", "json", "yaml")
@options.elasti_namespace_option
@options.cluster_options
def command(
    *, name: str, namespace: str | None, output: str, elasti_namespace: str, access: AccessOptions
) -> None:
    """Describe one ElastiService: spec, state, conditions, target, endpoints, events, and advice.

    Parts that you may not read are marked unknown. Nothing is cut: a narrow terminal wraps the tables.

    \b
    Examples:
      elasti describe web
      elasti describe web -n shop -o json | jq .advice
    """
    from elasti.cli.describe.collect import describe
    from elasti.cli.describe.text import as_text
    from elasti.cli.running import run_to_end

    found = run_to_end(
        lambda: describe(access, name, namespace=namespace, elasti_namespace=elasti_namespace)
    )
    echo(as_text(found) if output == "text" else render(found.to_json(), output), nl=False)
