"""DNS names and IP addresses, as Kubernetes and URLs write them. Pure."""

from __future__ import annotations

#: A DNS label (RFC 1123) as a regular expression, without anchors. The second form bounds its length.
DNS_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
DNS_LABEL_63 = "[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
#: A DNS subdomain: labels joined by dots.
DNS_SUBDOMAIN = rf"{DNS_LABEL}(\.{DNS_LABEL})*"


def url_host(host: str) -> str:
    """Return a host for a URL or a Host field: an IPv6 address goes into brackets (RFC 3986)."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
