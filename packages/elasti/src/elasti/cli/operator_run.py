"""What `elasti operator` does: settings, logs, a client, and the operator until a signal."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import click

from elasti.api.parsing import SettingsError
from elasti.cli import logs
from elasti.cli.running import failure_from
from elasti.operator.app import OperatorApp
from elasti.operator.settings import OperatorSettings
from kubeloop.client import Client, ClientConfig, KubeError
from kubeloop.controller import run_until_signal


def run(*, context: str | None, log_level: str, pretty: bool | None, **overrides: Any) -> None:
    """Run the operator. Raises ClickException with one line where it cannot."""
    try:
        settings = OperatorSettings.from_env(os.environ, **overrides)
    except SettingsError as error:
        raise click.ClickException(str(error)) from error
    logs.configure(level=log_level, pretty=pretty)
    try:
        asyncio.run(_operate(settings, context))
    except (KubeError, OSError) as error:
        raise failure_from(error) from error


async def _operate(settings: OperatorSettings, context: str | None) -> None:
    config = ClientConfig.from_env(context=context)
    async with Client(config) as client:
        operator = OperatorApp(
            settings,
            client=client,
            open_client=lambda: Client(ClientConfig.from_env(context=context)),
        )
        await run_until_signal(operator)
