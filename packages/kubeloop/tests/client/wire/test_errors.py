"""The standard library's failures, told in our words."""

from __future__ import annotations

import errno
import socket
import ssl

import pytest

from kubeloop.client.errors import (
    CertificateError,
    ConnectionLost,
    ConnectionRefused,
    HostNotFound,
    RequestTimeout,
    TransportError,
)
from kubeloop.client.wire.errors import transport_error

URL = "https://server:6443/api"


def tls(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, f"[SSL: {reason}] something")
    error.reason = reason
    return error


def untrusted(code: int, message: str) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_code, error.verify_message = code, message
    return error


@pytest.mark.parametrize(
    ("error", "kind", "told"),
    [
        (ConnectionRefusedError(111, "refused"), ConnectionRefused, "nothing listens"),
        (
            OSError("Multiple exceptions: [Errno 111] a ('::1'), [Errno 111] b ('127.0.0.1')"),
            ConnectionRefused,
            "nothing listens",
        ),
        (
            OSError("Multiple exceptions: [Errno 111] a, [Errno 101] unreachable"),
            TransportError,
            "network reachable",
        ),
        (OSError(errno.ENETUNREACH, "Network is unreachable"), TransportError, "reachable?"),
        (socket.gaierror(-2, "Name or service not known"), HostNotFound, "DNS settings"),
        (ConnectionResetError(104, "reset"), ConnectionLost, "before an answer came"),
        (BrokenPipeError(32, "broken"), ConnectionLost, "before an answer came"),
        (EOFError(), ConnectionLost, "end of stream"),
        (TimeoutError(), RequestTimeout, "longer timeout="),
        (untrusted(10, "certificate has expired"), CertificateError, "has expired"),
        (untrusted(9, "not yet valid"), CertificateError, "clock"),
        (untrusted(62, "Hostname mismatch"), CertificateError, "tls-server-name"),
        (untrusted(64, "IP address mismatch"), CertificateError, "tls-server-name"),
        (untrusted(19, "self-signed"), CertificateError, "not trusted (self-signed)"),
        (tls("TLSV13_ALERT_CERTIFICATE_REQUIRED"), CertificateError, "our client certificate"),
        (tls("TLSV1_ALERT_UNKNOWN_CA"), CertificateError, "our client certificate"),
        (tls("SSLV3_ALERT_CERTIFICATE_EXPIRED"), CertificateError, "is it expired"),
        (tls("SSLV3_ALERT_HANDSHAKE_FAILURE"), TransportError, "want a client certificate"),
        (tls("WRONG_VERSION_NUMBER"), TransportError, "begin with http://"),
        (tls("UNEXPECTED_EOF_WHILE_READING"), ConnectionLost, "unexpected eof"),
        (tls("DECRYPTION_FAILED_OR_BAD_RECORD_MAC"), TransportError, "TLS failed: decryption"),
        (ZeroDivisionError("what?"), TransportError, "ZeroDivisionError: what?"),
    ],
)
def test_each_failure_has_its_kind_and_its_remedy(error, kind, told):
    told_error = transport_error(error, URL)
    assert type(told_error) is kind
    assert str(told_error).startswith(f"{URL}: ")
    assert told in str(told_error)


def test_a_connection_lost_inside_the_answer_says_so():
    error = transport_error(ConnectionResetError(), URL, answer_begun=True)
    assert isinstance(error, ConnectionLost)
    assert error.answer_begun
    assert "in the middle of the answer" in str(error)
