"""`elasti version`."""

from __future__ import annotations

import platform

import click

from elasti._version import __version__
from elasti.cli.options import output_option
from elasti.cli.rendering import echo, render


@click.command("version")
@output_option("text", "json", "yaml")
def command(*, output: str) -> None:
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
