"""Credential plugins: running the command of a kubeconfig's `exec` user, and caching its answers.

The plugin gets its question in KUBERNETES_EXEC_INFO and answers on standard output. Unless it is
interactive it runs in a session of its own, so that a plugin that hangs is ended together with the
programs it started; a terminal is only handed to it if there is one and it may have it.

`PluginIdentity` shares one run among concurrent requests. A credential is renewed shortly
before it expires; when that run fails the old one serves until its real end, and the plugin gets a
pause before it is run again. After a 401 the plugin is run before the next request.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import functools
import logging
import os
import shutil
import signal
import sys
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from kubeloop.aio.tasks import SingleFlight
from kubeloop.client.auth import exec_credential
from kubeloop.client.auth.credentials import bearer
from kubeloop.client.errors import CredentialError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kubeloop.aio.clock import Clock
    from kubeloop.client.auth.exec_credential import ClusterInfo, PluginCredential
    from kubeloop.client.auth.tls import ClientKeyPair


# A person may have to log in.
_INTERACTIVE_TIMEOUT = 600.0
_MOST_OUTPUT = 1 << 20
_STDERR_SHOWN = 2000


_LOG = logging.getLogger(__name__)


class InteractiveMode(StrEnum):
    """How a plugin uses standard input."""

    NEVER = "Never"
    IF_AVAILABLE = "IfAvailable"
    ALWAYS = "Always"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecSpec:
    """A checked `exec` entry. `command` is a name to look up in PATH, or an absolute path."""

    command: str
    args: tuple[str, ...] = field(default=(), repr=False)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    api_version: str = exec_credential.API_VERSIONS[0]
    interactive_mode: InteractiveMode = InteractiveMode.IF_AVAILABLE
    install_hint: str = ""
    origin: str = "exec"


def stdin_is_terminal() -> bool:
    """Whether a user could type an answer to a plugin."""
    try:
        return sys.stdin is not None and sys.stdin.isatty()
    except ValueError:  # closed
        return False


@dataclass(frozen=True, eq=False)
class ExecPlugin:
    """One plugin, ready to be run. Runs are independent of each other and keep no state."""

    spec: ExecSpec
    _: KW_ONLY
    environ: Mapping[str, str] = field(repr=False)
    clock: Clock
    cluster: Callable[[], ClusterInfo] | None = None
    has_terminal: Callable[[], bool] = stdin_is_terminal
    timeout: float = 60.0

    @property
    def origin(self) -> str:
        """The setting that names this plugin, for errors."""
        return self.spec.origin

    async def run(self) -> PluginCredential:
        """Run it once and return what it gives. Raises `CredentialError`.

        The process is gone when this returns, raises or is cancelled.
        """
        interactive = self._interactive()
        process = await self._started(interactive=interactive)
        limit = _INTERACTIVE_TIMEOUT if interactive else self.timeout
        output = await self._finish(process, limit=limit, group=not interactive)
        return exec_credential.parse(
            output,
            api_version=self.spec.api_version,
            origin=f"{self.spec.origin} ({self.spec.command})",
            now=self.clock.now(),
        )

    def _interactive(self) -> bool:
        match self.spec.interactive_mode:
            case InteractiveMode.NEVER:
                return False
            case InteractiveMode.IF_AVAILABLE:
                return self.has_terminal()
            case InteractiveMode.ALWAYS:
                if not self.has_terminal():
                    raise self._error(
                        "interactiveMode is Always and standard input is not a terminal; run this"
                        " in a terminal, or use a plugin that can log in without one"
                    )
                return True

    async def _started(self, *, interactive: bool) -> asyncio.subprocess.Process:
        """Start the process; a cancellation meanwhile still ends whatever comes of it.

        The program may run, and have started others, before asyncio has connected its pipes.
        asyncio itself would then end the program alone.
        """
        starting = asyncio.create_task(self._start(interactive=interactive))
        try:
            await asyncio.wait({starting})
        except asyncio.CancelledError:
            starting.add_done_callback(functools.partial(_discard, group=not interactive))
            await asyncio.wait({starting})
            with contextlib.suppress(CredentialError):
                await starting.result().wait()
            raise
        return starting.result()

    async def _start(self, *, interactive: bool) -> asyncio.subprocess.Process:
        command = self._locate()
        try:
            return await asyncio.create_subprocess_exec(
                command,
                *self.spec.args,
                stdin=None if interactive else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                # An interactive plugin asks its questions on standard error.
                stderr=None if interactive else asyncio.subprocess.PIPE,
                env=self._environment(interactive=interactive),
                start_new_session=not interactive,
            )
        except PermissionError as error:
            raise self._error(
                f"{command} may not be executed; make it executable (chmod +x)"
            ) from error
        except (OSError, ValueError) as error:
            raise self._error(f"{command} cannot be started: {error}") from error

    def _locate(self) -> str:
        command = self.spec.command
        found = shutil.which(command, path=self.environ.get("PATH", os.defpath))
        if found is not None:
            return found
        if os.sep in command:
            if os.path.isfile(command):  # noqa: PTH113 - a str from outside, which may hold a NUL
                raise self._error(f"{command} may not be executed; make it executable (chmod +x)")
            raise self._error(f"there is no {command}; install the plugin{self._hint()}")
        raise self._error(
            f"the command {command!r} is not in PATH; install the plugin or give its whole"
            f" path{self._hint()}"
        )

    def _hint(self) -> str:
        hint = _printable(self.spec.install_hint)
        return f". Its installHint says: {hint}" if hint else ""

    def _environment(self, *, interactive: bool) -> dict[str, str]:
        info = exec_credential.request(
            api_version=self.spec.api_version,
            interactive=interactive,
            cluster=self.cluster() if self.cluster else None,
        )
        return {**self.environ, **self.spec.env, "KUBERNETES_EXEC_INFO": info}

    async def _finish(
        self, process: asyncio.subprocess.Process, *, limit: float, group: bool
    ) -> bytes:
        errors = bytearray()
        try:
            async with asyncio.timeout(limit):
                output = await _collect(process, errors)
        except BaseException as error:
            await _kill(process, group=group)
            if isinstance(error, TimeoutError):
                raise self._error(
                    f"the plugin did not end within {limit:g} s{_quote(errors)}"
                ) from error
            raise
        if process.returncode:
            raise self._error(
                f"the plugin failed {_exit_words(process.returncode)}{_quote(errors)}"
            )
        if len(output) > _MOST_OUTPUT:
            raise self._error(
                f"the plugin wrote more than {_MOST_OUTPUT >> 20} MiB, which is not a credential"
            )
        return output

    def _error(self, message: str) -> CredentialError:
        return CredentialError(f"{self.spec.origin} ({self.spec.command}): {message}")


async def _collect(process: asyncio.subprocess.Process, errors: bytearray) -> bytes:
    """Read both streams to their ends, then wait; `errors` fills while it goes."""
    assert process.stdout is not None
    async with asyncio.TaskGroup() as group:
        output = group.create_task(_read_bounded(process.stdout))
        if process.stderr is not None:
            group.create_task(_drain(process.stderr, errors))
    await process.wait()
    return output.result()


async def _read_bounded(stream: asyncio.StreamReader) -> bytes:
    """Read to the end; what is too long to be a credential is read on and thrown away."""
    kept = bytearray()
    while chunk := await stream.read(65536):
        if len(kept) <= _MOST_OUTPUT:
            kept += chunk
    return bytes(kept)


async def _drain(stream: asyncio.StreamReader, into: bytearray) -> None:
    while chunk := await stream.read(4096):
        into += chunk
        del into[:-_STDERR_SHOWN]


async def _kill(process: asyncio.subprocess.Process, *, group: bool) -> None:
    _send_kill(process, group=group)
    await process.wait()


def _discard(starting: asyncio.Task[asyncio.subprocess.Process], *, group: bool) -> None:
    if not starting.cancelled() and starting.exception() is None:
        _send_kill(starting.result(), group=group)


def _send_kill(process: asyncio.subprocess.Process, *, group: bool) -> None:
    """End the process, and with `group` what it started, which may have outlived it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if group:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


def _exit_words(code: int) -> str:
    if code > 0:
        return f"with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"by signal {signal.Signals(-code).name}"
    return f"by signal {-code}"


def _quote(errors: bytearray) -> str:
    text = _printable(errors.decode("utf-8", errors="replace"))
    return f". Standard error: {text}" if text else ""


def _printable(text: str) -> str:
    """Keep escape sequences of strangers away from the terminal that shows the message."""
    return "".join(char for char in text if char.isprintable() or char in "\n\t").strip()


_LEEWAY = dt.timedelta(seconds=30)
_RETRY_PAUSE = dt.timedelta(seconds=5)


class Plugin(Protocol):
    """A program that prints credentials."""

    @property
    def origin(self) -> str:
        """The setting that names the plugin, for messages."""

    async def run(self) -> PluginCredential:
        """Return a credential that is valid now. Raises `CredentialError`."""


class PluginIdentity:
    """Both a header source and a certificate source, from one plugin."""

    def __init__(self, plugin: Plugin, *, clock: Clock) -> None:
        self._plugin = plugin
        self.clock = clock
        self._flight = SingleFlight(self._renew)
        self._credential: PluginCredential | None = None
        self._headers: Mapping[str, str] = {}
        self._renew_at: dt.datetime | None = None

    async def headers(self) -> Mapping[str, str]:
        """Return the bearer header, or nothing if the plugin gives certificates only."""
        await self._fresh()
        return self._headers

    async def key_pair(self) -> ClientKeyPair | None:
        """Return the certificate that the plugin gave, if it did."""
        return (await self._fresh()).pair

    def invalidate(self, refused: Mapping[str, str] | None = None) -> None:
        """Drop the credential, unless the refused one has been replaced since."""
        if refused is None or refused == self._headers:
            self._credential = None

    async def _fresh(self) -> PluginCredential:
        credential = self._credential
        if credential is None:
            return await self._flight.run()
        if self._renew_at is None or self.clock.now() < self._renew_at:
            return credential
        try:
            return await self._flight.run()
        except CredentialError as error:
            return self._keep_until_expiry(credential, error)

    def _keep_until_expiry(
        self, credential: PluginCredential, error: CredentialError
    ) -> PluginCredential:
        """Keep a credential that could not be renewed, while it is still valid."""
        now = self.clock.now()
        if (
            credential is not self._credential
            or not credential.expires
            or credential.expires <= now
        ):
            raise error
        self._renew_at = min(now + _RETRY_PAUSE, credential.expires)
        _LOG.warning(
            "credential expires at %s and cannot be renewed: %s", credential.expires, error
        )
        return credential

    async def _renew(self) -> PluginCredential:
        credential = await self._plugin.run()
        # Before anything is stored: a token that no header can carry must not replace a good one.
        headers = bearer(credential.token, origin=self._plugin.origin) if credential.token else {}
        self._headers = headers
        self._credential = credential
        self._renew_at = self._due(credential)
        return credential

    def _due(self, credential: PluginCredential) -> dt.datetime | None:
        """Return when to renew: half a minute early, or a tenth of a short life."""
        if credential.expires is None:
            return None
        life = credential.expires - self.clock.now()
        return credential.expires - min(_LEEWAY, life / 10)
