"""`elasti demo`."""

from __future__ import annotations

import click


@click.command("demo")
@click.option("--keep", is_flag=True, help="Leave it running afterwards, with lines to explore it.")
def command(*, keep: bool) -> None:
    """Show the whole loop: two apps sleep, are woken by real requests, serve, sleep again.

    Starts a cluster of its own (see `elasti dev`), with Elasti and two small apps in it, and takes
    about a minute. Nothing is left behind, also after Ctrl-C. Ends with 1 where a request was lost.

    \b
    Examples:
      elasti demo
      elasti demo --keep
    """
    import logging
    import os

    from elasti.cli.demo.run import run
    from elasti.cli.dev_run import container_environment
    from elasti.cli.running import run_until_interrupted

    # What goes wrong and is tried again is no part of the story; what fails for good ends it.
    logging.basicConfig(level=logging.CRITICAL)
    run_until_interrupted(lambda: run(keep=keep, environment=container_environment(os.environ)))
