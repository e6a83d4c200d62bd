"""Every command that talks to a cluster: no cluster, no right, no definition, and a bad context."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from tests.cli.environment import NOBODY, CommandEnvironment

from elasti.cli.elastiservices import no_such
from elasti.cli.exits import ExitCode
from elasti.cli.running import failure_from
from kubeloop.client.errors import (
    ConfigError,
    ConnectionRefused,
    CredentialError,
    Forbidden,
    InternalError,
    NoMatch,
    NotFound,
    Status,
    Unauthorized,
)

CALLS = {
    "get": ["get"],
    "get NAME": ["get", "web"],
    "get --watch": ["get", "--watch"],
    "describe": ["describe", "web"],
    "wake": ["wake", "web"],
    "wake --wait": ["wake", "web", "--wait"],
    "sleep": ["sleep", "web"],
    "sleep --wait": ["sleep", "web", "--wait"],
    "informer": ["informer", "elastiservices"],
}
calls = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


@calls
def test_without_a_cluster_the_context_is_named(environment: CommandEnvironment, call: list[str]):
    result = environment.run(*call, kubeconfig=environment.nowhere)
    assert result.exit_code == ExitCode.NO_CLUSTER
    assert result.stdout == ""
    assert "connection refused" in result.stderr
    assert f"The address is from kubeconfig {environment.nowhere}, context " in result.stderr
    assert "Traceback" not in result.output


@calls
def test_without_a_right_the_rule_is_printed(environment: CommandEnvironment, call: list[str]):
    result = environment.run(*call, kubeconfig=environment.nobody)
    assert result.exit_code == ExitCode.NOT_ALLOWED
    assert f'User "{NOBODY}" cannot ' in result.stderr
    assert '  - apiGroups: ["elasti.truefoundry.com"]\n' in result.stderr
    assert '    resources: ["elastiservices"]\n' in result.stderr
    assert "Traceback" not in result.output


@calls
def test_without_the_definition_the_command_to_run_is_named(
    environment: CommandEnvironment, call: list[str]
):
    result = environment.run(*call, kubeconfig=environment.bare)
    if call[0] == "informer":  # any resource may be asked for there
        assert result.exit_code == ExitCode.NOT_FOUND
        assert "elastiservices" in result.stderr
        return
    assert result.exit_code == ExitCode.NOT_INSTALLED
    assert "elasti install" in result.stderr
    assert "Traceback" not in result.output


@calls
def test_an_unknown_context_is_an_error_that_names_the_others(
    environment: CommandEnvironment, call: list[str]
):
    result = environment.run(*call, "--context", "prod", kubeconfig=environment.admin)
    assert result.exit_code == ExitCode.NO_CLUSTER
    assert "there is no context 'prod'; known contexts: '" in result.stderr


@calls
def test_a_missing_kubeconfig_is_an_error(
    environment: CommandEnvironment, call: list[str], tmp_path: Path
):
    result = environment.run(*call, "--kubeconfig", str(tmp_path / "missing"))
    assert result.exit_code == ExitCode.NO_CLUSTER
    assert str(tmp_path / "missing") in result.stderr


@calls
def test_a_token_that_is_not_accepted_asks_to_log_in_again(
    environment: CommandEnvironment, call: list[str], tmp_path: Path
):
    document = yaml.safe_load(environment.admin.read_text())
    document["users"][0]["user"] = {"token": "old"}
    path = tmp_path / "expired"
    path.write_text(yaml.safe_dump(document))
    result = environment.run(*call, kubeconfig=path)
    assert result.exit_code == ExitCode.NOT_ALLOWED
    assert "Log in again" in result.stderr


# The mapping by itself

DENIED = (
    'deployments.apps is forbidden: User "x" cannot list resource "deployments" in API group "apps"'
)


@pytest.mark.parametrize(
    ("error", "code", "remedy"),
    [
        (CredentialError("expired"), ExitCode.NOT_ALLOWED, ""),
        (ConfigError("no context"), ExitCode.NO_CLUSTER, "Choose another with --kubeconfig"),
        (ConnectionRefused("x"), ExitCode.NO_CLUSTER, "The address is from kubeconfig k;"),
        (Unauthorized(Status(code=401)), ExitCode.NOT_ALLOWED, "Log in again, or"),
        (Forbidden(Status(message=DENIED)), ExitCode.NOT_ALLOWED, "A ClusterRole with this rule"),
        (
            Forbidden(Status(message=f'{DENIED} in the namespace "blue"')),
            ExitCode.NOT_ALLOWED,
            "A Role in namespace blue with",
        ),
        (Forbidden(Status(message="quota exceeded")), ExitCode.NOT_ALLOWED, ""),
        (NotFound(Status(message="no")), ExitCode.NOT_FOUND, ""),
        (NoMatch("no kind"), ExitCode.NOT_FOUND, ""),
        (InternalError(Status(code=500)), ExitCode.FAILED, ""),
        (OSError("disk"), ExitCode.FAILED, ""),
    ],
)
def test_each_error_has_its_code_and_remedy(error: Exception, code: ExitCode, remedy: str):
    failure = failure_from(error, source="kubeconfig k")
    assert failure.exit_code == code
    assert failure.remedy.startswith(remedy)
    assert bool(failure.remedy) is bool(remedy)


def test_names_that_come_near_are_offered():
    others = ["web", "api", "worker"]
    assert no_such("wep", "blue", others).endswith("; it has web")
    assert no_such("zzz", "blue", others).endswith("; it has web, api, worker")
    assert "elasti get -A" in no_such("zzz", "blue", [])
