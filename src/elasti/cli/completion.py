"""`elasti completion`: a script that teaches a shell our commands, options and ElastiServices."""

from __future__ import annotations

import click

_VARIABLE = "_ELASTI_COMPLETE"


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(*, shell: str) -> None:
    """Print a script that completes commands, options, contexts and ElastiServices' names.

    Names come from the cluster, if it answers within a second.

    \b
    Examples:
      source <(elasti completion bash)
      elasti completion zsh > "${fpath[1]}/_elasti"
      elasti completion fish > ~/.config/fish/completions/elasti.fish
    """
    from click.shell_completion import ShellComplete, get_completion_class

    root = click.get_current_context().find_root()
    found = get_completion_class(shell)
    assert found is not None
    # Not through bash's own class: it runs bash to see how old it is, and may warn on this terminal
    # about a shell in which the script is not going to be used.
    script = ShellComplete.source(found(root.command, {}, "elasti", _VARIABLE))
    click.echo(script)
