"""A protocol where the server speaks first, with a client that people use: mail, cold and hot."""

from __future__ import annotations

import asyncio
import smtplib
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.resolver.proxy.real_pods import release_when_held
from tests.resolver.proxy.rig import HOST, Rig

from elasti.resolver.proxy.upstream.interface import PortProtocol

pytestmark = pytest.mark.slow


class Mail:
    """A mail server, as a pod's handler: greets, takes letters, keeps them."""

    def __init__(self) -> None:
        self.letters: list[bytes] = []

    async def __call__(self, pod, reader, writer) -> None:
        writer.write(b"220 mail.example ready\r\n")
        while line := await reader.readline():
            word = line.split()[0].upper()
            if word == b"DATA":
                writer.write(b"354 go on\r\n")
                letter = b""
                while not letter.endswith(b"\r\n.\r\n"):
                    letter += await reader.readline()
                self.letters.append(letter)
            writer.write(b"221 bye\r\n" if word == b"QUIT" else b"250 fine\r\n")
            if word == b"QUIT":
                return


LINE = "y" * 98 + "\r\n"


def send_letter(port: int, lines: int) -> None:
    with smtplib.SMTP(HOST, port, timeout=40) as server:
        server.sendmail("me@example.com", ["you@example.com"], "Subject: x\r\n\r\n" + LINE * lines)


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("protocol", [PortProtocol.TCP, PortProtocol.DETECT])
async def test_a_letter_is_delivered_to_a_server_that_speaks_first(protocol, held):
    mail = Mail()
    async with Rig(protocol=protocol) as rig, asyncio.TaskGroup() as tasks:
        pod = await rig.pod(mail, ready=not held)
        if held:
            # The client says nothing before it is greeted: the connection alone wakes.
            tasks.create_task(release_when_held(rig, pod.address))
        with ThreadPoolExecutor(1) as thread:
            await asyncio.get_running_loop().run_in_executor(thread, send_letter, rig.port, 3000)
        assert rig.upstream.arrivals == 1
    assert len(mail.letters) == 1
    assert mail.letters[0].count(LINE.encode()) == 3000
