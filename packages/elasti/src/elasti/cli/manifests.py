"""`elasti manifests`: what `elasti install` applies, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from elasti.cli.install.choices import install_options

if TYPE_CHECKING:
    from elasti.cli.install.choices import Choices


@click.command("manifests")
@install_options
@click.option(
    "-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True
)
def command(*, choices: Choices, output: str) -> None:
    """Print everything that `elasti install` applies: definition, rights, operator, resolver.

    \b
    Examples:
      elasti manifests --image registry.example.com/elasti:1 | kubectl apply --server-side -f -
      elasti manifests --namespaced --watch-namespace shop --watch-namespace blog --no-crd
      elasti manifests --env operator:POLLING_INTERVAL=10s -o json
    """
    from elasti.cli.install.bundle import as_text, bundle

    click.echo(as_text(bundle(choices), output), nl=False)
