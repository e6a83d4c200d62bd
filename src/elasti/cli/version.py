"""`elasti version`."""

from __future__ import annotations

import platform

import click

from kubeloop._version import __version__


@click.command("version")
def command() -> None:
    """Print the version of Elasti and of the Python that runs it.

    \b
    Example:
      elasti version
    """
    click.echo(f"elasti {__version__} (Python {platform.python_version()})")
