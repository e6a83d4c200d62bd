"""Where an API server is: its URL taken apart, the name to verify it by, the proxy in between.

The URL is parsed once, when the configuration is read, so that a mistake in it is reported with the
file that holds it and not by a failed connection.

HTTPS_PROXY, HTTP_PROXY and NO_PROXY mean what they mean to Go programs, also in lower case. NO_PROXY is `*`,
or a list of addresses, networks (10.0.0.0/8) and domains, each with a port or not: example.com is that host and
all below it, .example.com only those below. This machine is never asked for through a proxy.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias
from urllib.parse import SplitResult, urlsplit

from kubeloop.client.errors import ConfigError
from kubeloop.objects.names import url_host

IPAddress: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_DEFAULT_PORTS = {"https": 443, "http": 80}


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The address of one API server. `host` has no brackets, `path` no trailing slash."""

    scheme: str
    host: str
    port: int
    path: str = ""
    server_name: str | None = None
    proxy: str | None = None

    @classmethod
    def parse(
        cls, url: str, *, server_name: str | None = None, proxy: str | None = None
    ) -> Endpoint:
        """Take a URL apart. Raises `ConfigError` that names it and what is wrong with it."""
        parts = _split(url)
        if parts.username is not None or parts.password is not None:
            raise ConfigError(
                "server URL carries a user name or password: move them to the user entry's"
                " username/password or token"
            )
        if parts.query or parts.fragment:
            raise _bad(url, "it must not have a query or a fragment")
        return cls(
            scheme=parts.scheme,
            host=_host(parts, url),
            port=_port(parts, url),
            path=parts.path.rstrip("/"),
            server_name=server_name or None,
        ).through(proxy)

    def through(self, proxy: str | None) -> Endpoint:
        """Return the same server, reached through a proxy (or none). Raises `ConfigError`."""
        return replace(self, proxy=_checked_proxy(proxy) if proxy else None)

    def through_environment(self, environ: Mapping[str, str]) -> Endpoint:
        """Return the same server, reached as the variables say, unless it has a proxy already."""
        name = f"{self.scheme}_proxy"
        found = environ.get(name.upper()) or environ.get(name)
        if self.proxy or not found or self._is_direct(environ):
            return self
        try:
            return self.through(found if "://" in found else f"http://{found}")
        except ConfigError as error:
            raise ConfigError(f"{name.upper()}: {error}") from error

    def _is_direct(self, environ: Mapping[str, str]) -> bool:
        address = _ip(self.host)
        if self.host == "localhost" or (address is not None and address.is_loopback):
            return True
        listed = (environ.get("NO_PROXY") or environ.get("no_proxy") or "").split(",")
        return any(self._is_covered(entry.strip().lower(), address) for entry in listed)

    def _is_covered(self, entry: str, address: IPAddress | None) -> bool:
        """Whether one entry of NO_PROXY is about this server."""
        if not entry or entry == "*":
            return bool(entry)
        if "/" in entry:
            network = _network(entry)
            return address is not None and network is not None and address in network
        host, colon, port = entry.rpartition(":")
        if _ip(entry.strip("[]")) is not None or not colon:
            host, port = entry, ""
        if port and port != str(self.port):
            return False
        if (listed := _ip(host.strip("[]"))) is not None:
            return address == listed
        host = host.removeprefix("*")
        if host.startswith("."):
            return self.host.endswith(host)
        return self.host == host or self.host.endswith(f".{host}")

    @property
    def url(self) -> str:
        """The whole URL, always with its port, never with a trailing slash."""
        return f"{self.scheme}://{url_host(self.host)}:{self.port}{self.path}"

    @property
    def is_secure(self) -> bool:
        """Whether the connection is encrypted; credentials are only sent if it is."""
        return self.scheme == "https"

    @property
    def proxy_address(self) -> str:
        """The proxy's URL without its credentials, for messages; empty if absent."""
        parts = urlsplit(self.proxy or "")
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}" if self.proxy else ""

    def __str__(self) -> str:
        return self.url


def _split(url: str) -> SplitResult:
    if any(ord(char) <= 0x20 or ord(char) == 0x7F for char in url):
        raise _bad(url, "it contains a space or a control character")
    if "://" not in url:
        # kubectl would speak plain http to it and keep the credentials to itself; say so instead.
        raise _bad(url, "it has no scheme; put https:// before it")
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise _bad(url, str(error)) from error
    if parts.scheme not in _DEFAULT_PORTS:
        raise _bad(url, f"its scheme {parts.scheme!r} is neither https nor http")
    return parts


def _host(parts: SplitResult, url: str) -> str:
    host = parts.hostname
    if not host:
        raise _bad(url, "it names no host")
    if ":" in host and _ip(host) is None:
        raise _bad(url, f"{host!r} is not an IPv6 address")
    return host


def _port(parts: SplitResult, url: str) -> int:
    try:
        port = parts.port
    except ValueError as error:
        raise _bad(url, "its port is not a number from 1 to 65535") from error
    if port == 0:
        raise _bad(url, "its port is not a number from 1 to 65535")
    return port if port is not None else _DEFAULT_PORTS[parts.scheme]


def _ip(host: str) -> IPAddress | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None


def _bad(url: str, why: str) -> ConfigError:
    return ConfigError(f"server URL {url!r}: {why}; expected for example https://10.0.0.1:6443")


def _checked_proxy(url: str) -> str:
    """Check a proxy URL. It may carry a password, so no message repeats it whole."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(
            "proxy URL cannot be parsed; expected for example http://proxy.example:3128"
        ) from error
    if parts.scheme in {"socks5", "socks5h"}:
        address = host if port is None else f"{host}:{port}"
        raise ConfigError(
            f"proxy URL {parts.scheme}://{address}: SOCKS proxies are not supported;"
            " use an http:// or https:// proxy that allows CONNECT"
        )
    if parts.scheme not in _DEFAULT_PORTS or not host:
        raise ConfigError(
            f"proxy URL with scheme {parts.scheme!r} and host {host!r}: expected"
            " http://HOST:PORT or https://HOST:PORT"
        )
    return url
