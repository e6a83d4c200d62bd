"""`elasti version`."""

from __future__ import annotations

import importlib.metadata
import platform

import click


@click.command("version")
def command() -> None:
    """Print the version of Elasti and of the Python that runs it.

    \b
    Example:
      elasti version
    """
    click.echo(
        f"elasti {importlib.metadata.version('elasti')} (Python {platform.python_version()})"
    )
