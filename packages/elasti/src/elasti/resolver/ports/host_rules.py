"""Which Service a request on the shared port is for, by its Host header. Pure.

KubeElasti's rules, read strictly: the whole value must be a Service's name in one of the forms that
cluster DNS knows, with an optional port, and (since gateways write routes into such headers) an
optional scheme and path:

    web.shop    web.shop.svc    web.shop.svc.cluster.local    web.shop.svc:8080    http://web.shop/*

Anything else names no Service: external names, addresses of either family, longer or shorter names. A name
that parses is still accepted only if its Service has an ElastiService, so no client can make the resolver
connect to where it was not meant to.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Container

from elasti.resolver.projections import ServiceKey

_LABEL = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_LONGEST = 512
_REMEMBERED = 4096


class HostRules:
    """Reads Host values for one cluster domain; remembers a bounded number of answers."""

    def __init__(self, *, cluster_domain: str) -> None:
        domain = re.escape(cluster_domain.strip(".").lower())
        self._pattern = re.compile(
            rf"(?:https?://)?(?P<service>{_LABEL})\.(?P<namespace>{_LABEL})"
            rf"(?:\.svc(?:\.{domain})?)?\.?(?::\d{{1,5}})?(?:/.*)?",
            re.DOTALL,
        )
        self._read = functools.lru_cache(maxsize=_REMEMBERED)(self._parse)

    def service_of(self, value: str, known: Container[ServiceKey]) -> ServiceKey | None:
        """Return the Service that a value names, if it is a known one."""
        if len(value) > _LONGEST:
            return None
        key = self._read(value)
        return key if key is not None and key in known else None

    def _parse(self, value: str) -> ServiceKey | None:
        found = self._pattern.fullmatch(value.strip(" \t").lower())
        return ServiceKey(found["namespace"], found["service"]) if found else None
