"""Failures of sockets, names and certificates, in messages that help.

Works on the standard library's errors alone, so that every kind of connection to an API server
reports alike: what failed, against which URL, and what a person can do about it.
"""

from __future__ import annotations

import errno
import re
import socket
import ssl

from kubeloop.client.errors import (
    CertificateError,
    ConnectionLost,
    ConnectionRefused,
    HostNotFound,
    RequestTimeout,
    TransportError,
)

_ERRNO = re.compile(r"\[Errno (\d+)\]")


def proxy_error(error: BaseException, url: str, proxy: str) -> TransportError:
    """Return our error for a proxy on the way to `url` that cannot be reached."""
    return transport_error(error, f"proxy {proxy} (to {url})", peer="the proxy")


def transport_error(
    error: BaseException, url: str, *, answer_begun: bool = False, peer: str = "the API server"
) -> TransportError:
    """Return our error for a library's; raise it `from` the original."""
    match error:
        case ssl.SSLCertVerificationError():
            return CertificateError(f"{url}: {_verification(error)}")
        case ssl.SSLError():
            return _tls_error(error, url, answer_begun=answer_begun)
        case TimeoutError():
            return timed_out(url, None, doing="the request")
        case ConnectionError() | EOFError() if not isinstance(error, ConnectionRefusedError):
            return lost(url, str(error), answer_begun=answer_begun)
        case _:
            return _unreachable(error, url, peer)


def _unreachable(error: BaseException, url: str, peer: str) -> TransportError:
    match error:
        case OSError() if _is_refused(error):
            return ConnectionRefused(
                f"{url}: connection refused: nothing listens there; is {peer} running,"
                " and are host and port right?"
            )
        case socket.gaierror():
            return HostNotFound(
                f"{url}: the host name cannot be resolved ({error.strerror or error});"
                f" check the URL of {peer} and the DNS settings"
            )
        case OSError():
            return TransportError(f"{url}: {error.strerror or error}; is the network reachable?")
        case _:
            return TransportError(f"{url}: {type(error).__name__}: {error}")


def _is_refused(error: OSError) -> bool:
    """Also where every address of a name refused, which asyncio reports as one text."""
    numbers = {error.errno} if error.errno else set(map(int, _ERRNO.findall(str(error))))
    return numbers == {errno.ECONNREFUSED}


def lost(url: str, why: str, *, answer_begun: bool) -> ConnectionLost:
    """Return the error for a connection that ended too early."""
    when = "in the middle of the answer" if answer_begun else "before an answer came"
    return ConnectionLost(
        f"{url}: the connection was closed {when} ({why or 'end of stream'});"
        " the server, or a proxy in between, may have restarted",
        answer_begun=answer_begun,
    )


def timed_out(url: str, seconds: float | None, *, doing: str) -> RequestTimeout:
    """Return the error for a step that took longer than allowed."""
    limit = "" if seconds is None else f" within {seconds:g} s"
    return RequestTimeout(
        f"{url}: {doing} did not finish{limit}; the server is overloaded, or packets to it are"
        " dropped: pass a longer timeout= if it is only slow"
    )


def _verification(error: ssl.SSLCertVerificationError) -> str:
    match error.verify_code:  # the X509_V_ERR_* numbers of OpenSSL
        case 10:
            return "the server's certificate has expired; renew it, or check this machine's clock"
        case 9:
            return "the server's certificate is not valid yet; check this machine's clock"
        case 62 | 64:
            return (
                f"the server's certificate is for another name ({error.verify_message});"
                " use the name it was made for, or set tls-server-name"
            )
        case _:
            return (
                f"the server's certificate is not trusted ({error.verify_message}); is"
                " certificate-authority the one of this cluster?"
            )


def _tls_error(error: ssl.SSLError, url: str, *, answer_begun: bool) -> TransportError:
    reason = error.reason or str(error)
    if "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason):
        return CertificateError(
            f"{url}: the server refuses our client certificate ({_readable(reason)}); is it"
            " expired, or signed by another cluster's authority?"
        )
    if "ALERT_HANDSHAKE_FAILURE" in reason:
        return TransportError(
            f"{url}: the server refuses the TLS handshake without saying why; does it want a client"
            " certificate, or are there no common TLS versions and ciphers?"
        )
    if reason in {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"}:
        return TransportError(
            f"{url}: the server does not speak TLS there ({_readable(reason)}); should the URL"
            " begin with http://, or is this the wrong port?"
        )
    if "EOF" in reason or isinstance(error, ssl.SSLZeroReturnError | ssl.SSLEOFError):
        return lost(url, f"TLS: {_readable(reason)}", answer_begun=answer_begun)
    return TransportError(f"{url}: TLS failed: {_readable(reason)}")


def _readable(reason: str) -> str:
    return reason.replace("_", " ").lower()
