"""`elasti crd`."""

from __future__ import annotations

import click


@click.command("crd")
@click.option(
    "-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True
)
def command(output: str) -> None:
    """Print the ElastiService CustomResourceDefinition.

    \b
    Example:
      elasti crd | kubectl apply --server-side -f -
    """
    from elasti.api.crd import custom_resource_definition
    from elasti.cli.rendering import render

    click.echo(render(custom_resource_definition(), output), nl=False)
