"""Running a coroutine for a person: Ctrl-C is a normal end, and errors are one line."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

import click

from kubeloop.client.errors import KubeError
from kubeloop.informer.sync import NotSynced
from kubeloop.objects.selector_tokens import SelectorError

Job: TypeAlias = Callable[[], Coroutine[Any, Any, None]]
LoopFactory: TypeAlias = Callable[[], asyncio.AbstractEventLoop]


def run_until_interrupted(job: Job, *, loop_factory: LoopFactory | None = None) -> None:
    """Run a job until it ends, or until SIGINT or SIGTERM cancels it; both are success.

    What a user can mend becomes a ClickException: one line, exit code 1, no traceback.
    """
    try:
        with (
            contextlib.suppress(asyncio.CancelledError),
            asyncio.Runner(loop_factory=loop_factory) as runner,
        ):
            runner.run(_cancelled_by_signals(job))
    except (KubeError, NotSynced, SelectorError, OSError) as error:
        raise click.ClickException(str(error)) from error


async def _cancelled_by_signals(job: Job) -> None:
    task = asyncio.current_task()
    assert task is not None
    for signum in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signum, task.cancel)
    await job()
