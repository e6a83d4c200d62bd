"""What other parsers read of the requests that a pod was sent: h11 and httptools."""

from __future__ import annotations

import h11
import httptools

from elasti.resolver.proxy.h2.frames import PREFACE


def assert_both_read_the_same(wire: bytes) -> None:
    """What a pod was sent is a sequence of requests, the last one perhaps unfinished."""
    if wire.startswith(PREFACE[:14]):
        return
    # h11 wants ASCII in targets, where we take any byte; it changes no framing.
    wire = bytes(byte if byte < 0x80 else 0x78 for byte in wire)
    by_h11, by_httptools = read_by_h11(wire), read_by_httptools(wire)
    if by_httptools is not None:
        # Each stops where a request asks to close or to switch; until then they agree.
        assert by_httptools[: len(by_h11)] == by_h11[: len(by_httptools)]


Request = tuple[bytes, bytes, bytes]


def read_by_h11(wire: bytes, found: list[Request] | None = None) -> list[Request]:
    """Return the whole requests that h11 finds, in `found`. Raises if something is not a request."""
    found = [] if found is None else found
    if not wire:
        return found  # h11 takes an empty read for the end of the connection
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(wire)
    line, body = (b"", b""), b""
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA or event is h11.PAUSED:
            return found
        if isinstance(event, h11.Request):
            line, body = (event.method, event.target), b""
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage):
            found.append((*line, body))
            if connection.their_state is not h11.DONE:
                return found  # it wants to close or to switch
            connection.send(h11.Response(status_code=204, headers=[]))
            connection.send(h11.EndOfMessage())
            if connection.our_state is h11.MUST_CLOSE:
                return found
            connection.start_next_cycle()


class Reader:
    """Collects the whole requests that httptools finds."""

    def __init__(self) -> None:
        self.found: list[Request] = []
        self.parser = httptools.HttpRequestParser(self)
        self._target = self._body = b""

    def on_message_begin(self) -> None:
        self._target = self._body = b""

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self.found.append((self.parser.get_method(), self._target, self._body))


def read_by_httptools(wire: bytes) -> list[Request] | None:
    """Return the whole requests that httptools finds; None for methods that it does not know."""
    reader = Reader()
    try:
        reader.parser.feed_data(wire)
    except httptools.HttpParserUpgrade:
        # It takes what follows the head of an upgrade for the other protocol, also a body that h11 reads.
        return reader.found[:-1]
    except httptools.HttpParserInvalidMethodError:
        return None
    return reader.found
