"""The flags of KubeElasti's manifests are taken."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from elasti.cli.operator import bind_address, go_flags


@click.command()
@click.option("--health", type=bind_address)
@go_flags
def program(*, health: int | None) -> None:
    click.echo(f"health={health}")


def test_flags_of_its_chart_are_accepted_and_reported_as_unused() -> None:
    result = CliRunner().invoke(
        program, ["--health=:8081", "--metrics-bind-address=0", "--enable-http2"]
    )
    assert result.exit_code == 0
    assert "health=8081" in result.output
    assert "--metrics-bind-address is known from KubeElasti and changes nothing" in result.output
    assert "--enable-http2 is known" in result.output
    assert "--metrics-secure" not in result.output


@pytest.mark.parametrize(
    ("text", "port"), [(":8081", 8081), ("0.0.0.0:80", 80), ("[::1]:9", 9), ("0", 0)]
)
def test_an_address_gives_its_port(text: str, port: int) -> None:
    assert bind_address(text) == port


@pytest.mark.parametrize("text", ["8081", ":", ":x", ":70000", "host"])
def test_an_invalid_address_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(click.BadParameter, match="write `:8081`, or `0` for none"):
        bind_address(text)
