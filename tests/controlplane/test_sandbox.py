"""The sandbox by itself: its relay, its way in, and its end."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.controlplane.sandbox import Address, Sandbox, SandboxError

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.usefixtures("namespaces")

SERVER = Address("10.200.9.9", 7)
TIMEOUT = 10.0

# Answers only when the client has ended its direction: with a reset to "die", else with an echo.
ECHO = f"""
import socket, struct
server = socket.create_server(({SERVER.host!r}, {SERVER.port}))
print("up", flush=True)
while True:
    connection, _ = server.accept()
    with connection, connection.makefile("rb") as stream:
        data = stream.read()
        if data == b"die":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            connection.sendall(data)
"""
OBEDIENT = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print("up", flush=True)
signal.pause()
"""


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with contextlib.closing(
        Sandbox(local_ranges=["10.200.0.0/16"], relays={"echo": SERVER})
    ) as sandbox:
        yield sandbox


def start(sandbox: Sandbox, *argv: str) -> subprocess.Popen[bytes]:
    """Start a program that says "up" when it is."""
    process = sandbox.popen(argv, stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout as output:
        assert output.readline() == b"up\n"
    return process


def exchange(sandbox: Sandbox, data: bytes) -> bytes:
    """Send, end our direction, and return all that comes back."""
    address = "127.0.0.1", sandbox.ports["echo"]
    with socket.create_connection(address, timeout=TIMEOUT) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        with connection.makefile("rb") as stream:
            return stream.read()


def test_the_relay_carries_each_direction_to_its_own_end(sandbox: Sandbox) -> None:
    start(sandbox, sys.executable, "-c", ECHO)
    much = bytes(range(256)) * 32 * 1024
    assert exchange(sandbox, much) == much
    assert exchange(sandbox, b"") == b""


def test_the_relay_passes_on_a_reset(sandbox: Sandbox) -> None:
    start(sandbox, sys.executable, "-c", ECHO)
    with pytest.raises(ConnectionResetError):
        exchange(sandbox, b"die")


def test_the_relay_closes_when_nothing_listens_inside(sandbox: Sandbox) -> None:
    assert exchange(sandbox, b"") == b""


def test_signals_go_in_and_the_status_comes_out(sandbox: Sandbox) -> None:
    process = start(sandbox, sys.executable, "-c", OBEDIENT)
    process.terminate()
    assert process.wait(TIMEOUT) == 7
    assert sandbox.popen(["sh", "-c", "kill -9 $$"]).wait(TIMEOUT) == -signal.SIGKILL
    nowhere = sandbox.popen(["/nowhere"], stderr=subprocess.PIPE)
    assert nowhere.communicate(timeout=TIMEOUT)[1] == b"/nowhere: No such file or directory\n"
    assert nowhere.returncode == 127


def test_a_program_is_at_home_inside(sandbox: Sandbox) -> None:
    script = "read line; echo $line; pwd; echo $COLOUR; ls /proc | grep -cx $$"
    process = sandbox.popen(
        ["sh", "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"COLOUR": "red", "PATH": "/usr/bin:/bin"},
        cwd=sandbox.directory,
    )
    output, _ = process.communicate(b"hello\n", timeout=TIMEOUT)
    assert output.decode().split("\n") == ["hello", str(sandbox.directory), "red", "1", ""]


def test_nothing_inside_outlives_it(sandbox: Sandbox) -> None:
    process = start(sandbox, "sh", "-c", "echo up; exec sleep 1000")
    sandbox.close()
    assert process.returncode == -signal.SIGKILL
    assert not sandbox.directory.exists()


def test_one_that_cannot_be_made_says_why() -> None:
    with pytest.raises(SandboxError, match="ip route add local nonsense"):
        Sandbox(local_ranges=["nonsense"], relays={})
