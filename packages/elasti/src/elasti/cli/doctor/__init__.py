"""`elasti doctor`: checks whether Elasti works on a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from elasti.cli import options
from elasti.cli.completion import complete_names
from elasti.cli.rendering import echo, render

if TYPE_CHECKING:
    from elasti.cli.cluster import AccessOptions


@click.command("doctor")
@options.namespace_option("Only the ElastiServices of this namespace; all by default.", "")
@click.option(
    "--path",
    metavar="NAME",
    shell_complete=complete_names,
    help="Ask only what answers this ElastiService's Service, and each Ingress and Gateway that leads to it.",
)
@options.output_option("text", "json", "yaml")
@options.elasti_namespace_option
@options.cluster_options
def command(
    *, access: AccessOptions, path: str, namespace: str, output: str, elasti_namespace: str
) -> None:
    """Check whether Elasti works on a cluster, with a remedy for each problem.

    It only reads: the API server, the definition, your rights and those of operator and
    resolver, their Deployments, the leader, the resolvers' endpoints, every ElastiService, autoscalers
    and network policies on the targets.

    With --path it sends a probe, which wakes nothing: a resolver answers it by itself. While the target is awake, its
    pods get it, as a GET of a path that they do not have. It is sent from here, so run it where the clients are.

    Exit code 0: nothing is wrong. 1: there is a problem. 4: no problem was found, but not everything could
    be read.

    \b
    Examples:
      elasti doctor
      elasti doctor -n shop
      elasti doctor -n shop --path web
      elasti doctor -o json | jq '.findings[] | select(.level == "problem")'
    """
    from elasti._version import __version__
    from elasti.cli.doctor.findings import DoctorFinding, exit_code, lines, to_json
    from elasti.cli.doctor.path import PathExamination
    from elasti.cli.running import connected, run_to_end

    async def examine() -> list[DoctorFinding]:
        async with connected(access) as client:
            place = namespace or (client.namespace if path else "")
            examination = PathExamination(
                client, namespace=place, elasti_namespace=elasti_namespace, version=__version__
            )
            return await (examination.path_findings(path) if path else examination.findings())

    findings = run_to_end(examine)
    if output == "text":
        for text, colour in lines(findings):
            echo(text, colour=colour)
    else:
        echo(render(to_json(findings), output), nl=False)
    click.get_current_context().exit(exit_code(findings))
