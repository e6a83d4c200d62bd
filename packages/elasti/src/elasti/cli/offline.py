"""Commands that ask no cluster: `elasti manifests` and `elasti crd`, which print what `install` applies, and `elasti version`."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

import click

from elasti._version import __version__
from elasti.cli.install.flags import choices_of, install_options
from elasti.cli.options import output_option
from elasti.cli.rendering import echo, render

if TYPE_CHECKING:
    from elasti.cli.install.choices import InstallOptions


@click.command("manifests")
@install_options
@output_option("yaml", "json")
def manifests(*, namespace: str, options: InstallOptions, output: str) -> None:
    """Print everything that `elasti install` applies: definition, rights, operator, resolver.

    \b
    Examples:
      elasti manifests --image registry.example.com/elasti:1 | kubectl apply --server-side -f -
      elasti manifests --namespaced --watch-namespace shop --watch-namespace blog --no-crd
      elasti manifests --env operator:POLLING_INTERVAL=10s -o json
    """
    from elasti.cli.install.bundle import as_text, bundle

    echo(as_text(bundle(choices_of(namespace, options)), output), nl=False)


@click.command("crd")
@output_option("yaml", "json")
def crd(*, output: str) -> None:
    """Print the ElastiService CustomResourceDefinition.

    \b
    Example:
      elasti crd | kubectl apply --server-side -f -
    """
    from elasti.api.crd import custom_resource_definition

    echo(render(custom_resource_definition(), output), nl=False)


@click.command("version")
@output_option("text", "json", "yaml")
def version(*, output: str) -> None:
    """Print the version of Elasti and of the Python that runs it.

    `elasti doctor` compares it with what runs in a cluster.

    \b
    Examples:
      elasti version
      elasti version -o json | jq -r .elasti
    """
    if output == "text":
        echo(f"elasti {__version__} (Python {platform.python_version()})")
        return
    versions = {"elasti": __version__, "python": platform.python_version()}
    echo(render(versions, output), nl=False)
