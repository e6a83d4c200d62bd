"""Names as Kubernetes writes them, checked before anybody is asked: a wrong one is a wrong call."""

from __future__ import annotations

import re

import click

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LONGEST = 253
# What `elasti get -o name` and `kubectl get -o name` print before the name.
_KIND = re.compile(r"elastiservices?(\.elasti\.truefoundry\.com)?/")


def namespace(text: str) -> str:
    """Return a namespace as it is; empty where an option means all. Raises BadParameter."""
    if text and not _LABEL.fullmatch(text):
        raise click.BadParameter(
            f"{text!r} is no namespace: lower-case letters, digits and '-', at most 63, beginning"
            " and ending with a letter or digit."
        )
    return text


def name(text: str) -> str:
    """Return an ElastiService's name, also from what `-o name` prints. Raises BadParameter."""
    found = _KIND.match(text)
    bare = text[found.end() :] if found else text
    if len(bare) > _LONGEST or not _SUBDOMAIN.fullmatch(bare):
        hint = " Name its namespace with -n." if bare.count("/") == 1 else ""
        raise click.BadParameter(
            f"{text!r} is no name: lower-case letters, digits, '-' and '.', beginning and ending"
            f" with a letter or digit.{hint}"
        )
    return bare
