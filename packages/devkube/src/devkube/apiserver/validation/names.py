"""Metadata: the syntax of names, labels and annotations, and what the server itself fills in.

The server's own part is times, uids and generated names.
"""

from __future__ import annotations

import datetime as dt
import random
import re
import uuid
from collections.abc import Callable, Iterator

from devkube.apiserver.status import FieldError, FieldErrorType, invalid, required
from kubeloop.aio.clock import Clock
from kubeloop.objects.meta import JsonObject
from kubeloop.objects.names import DNS_LABEL, DNS_SUBDOMAIN

_LABEL = re.compile(rf"{DNS_LABEL}\Z")
_LABEL_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?\Z")
_SUBDOMAIN = re.compile(rf"{DNS_SUBDOMAIN}\Z")
_QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]\Z")
_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?\Z")

LABEL_MESSAGE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must"
    " start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for"
    " validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
LABEL_1035_MESSAGE = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an"
    " alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123',"
    " regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')"
)
SUBDOMAIN_MESSAGE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.',"
    " and must start and end with an alphanumeric character (e.g. 'example.com', regex used for"
    " validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_QUALIFIED_MESSAGE = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with"
    " an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for"
    " validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_VALUE_MESSAGE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.',"
    " and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or"
    " '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
_ANNOTATIONS_LIMIT = 256 * 1024
# The alphabet of generated names: no vowels, no 0, 1, 3, so that no word appears by chance.
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_NAME_LIMIT = 63
_SUFFIX = 5


def dns_label(value: str) -> list[str]:
    """Say what keeps a value from being an RFC 1123 label."""
    dotted = _SUBDOMAIN.match(value) is not None
    return _judge(value, 63, _LABEL, "must not contain dots" if dotted else LABEL_MESSAGE)


def dns_label_1035(value: str) -> list[str]:
    """Say what keeps a value from being an RFC 1035 label, as Services must be named."""
    return _judge(value, 63, _LABEL_1035, LABEL_1035_MESSAGE)


def dns_subdomain(value: str) -> list[str]:
    """Say what keeps a value from being an RFC 1123 subdomain, as most objects must be named."""
    return _judge(value, 253, _SUBDOMAIN, SUBDOMAIN_MESSAGE)


def path_segment(value: str) -> list[str]:
    """Say what keeps a value from being a segment of a path, as roles must be named."""
    if value in (".", ".."):
        return [f"may not be '{value}'"]
    return [f"may not contain '{char}'" for char in "/%" if char in value]


def qualified_name(value: str) -> list[str]:
    """Say what keeps a value from being a label's key."""
    prefix, slash, name = value.rpartition("/")
    problems = []
    if slash:
        if not prefix:
            problems.append("prefix part must be non-empty")
        elif not _SUBDOMAIN.match(prefix) or len(prefix) > 253:
            problems.append(f"prefix part {SUBDOMAIN_MESSAGE}")
    if not name:
        problems.append("name part must be non-empty")
    elif len(name) > 63:
        problems.append("name part must be no more than 63 bytes")
    if not _QUALIFIED.match(name):
        problems.append(_QUALIFIED_MESSAGE)
    return problems


def label_value(value: str) -> list[str]:
    """Say what keeps a value from being a label's."""
    return _judge(value, 63, _VALUE, _VALUE_MESSAGE)


def _judge(value: str, limit: int, pattern: re.Pattern[str], message: str) -> list[str]:
    problems = []
    if len(value.encode(errors="surrogatepass")) > limit:
        problems.append(f"must be no more than {limit} bytes")
    if not pattern.match(value):
        problems.append(message)
    return problems


def check_metadata(
    metadata: JsonObject, *, namespaced: bool, name_rule: Callable[[str], list[str]]
) -> list[FieldError]:
    """Return what is wrong with an object's metadata."""
    errors: list[FieldError] = []
    name = metadata.get("name", "")
    if not name:
        errors.append(required("metadata.name", "name or generateName is required"))
    else:
        errors += [invalid("metadata.name", name, text) for text in name_rule(name)]
    namespace = metadata.get("namespace", "")
    if namespaced and not namespace:
        errors.append(required("metadata.namespace"))
    elif namespace:
        errors += [invalid("metadata.namespace", namespace, text) for text in dns_label(namespace)]
    errors += check_labels(metadata.get("labels") or {}, "metadata.labels")
    errors += _check_annotations(metadata.get("annotations") or {})
    errors += [
        invalid("metadata.finalizers", name, text)
        for name in metadata.get("finalizers") or []
        for text in qualified_name(name)
    ]
    errors += _check_owners(metadata.get("ownerReferences") or [])
    return errors


def check_labels(labels: JsonObject, field: str) -> list[FieldError]:
    """Return what is wrong with a map of labels."""
    errors = []
    for key, value in labels.items():
        errors += [invalid(field, key, text) for text in qualified_name(key)]
        errors += [invalid(field, value, text) for text in label_value(value)]
    return errors


def _check_annotations(annotations: JsonObject) -> list[FieldError]:
    field = "metadata.annotations"
    errors = [
        invalid(field, key, text) for key in annotations for text in qualified_name(key.lower())
    ]
    size = sum(len(key) + len(value) for key, value in annotations.items())
    if size > _ANNOTATIONS_LIMIT:
        detail = f"may not be more than {_ANNOTATIONS_LIMIT} bytes"
        errors.append(FieldError(FieldErrorType.TOO_LONG, field, "", detail))
    return errors


def _check_owners(owners: list[JsonObject]) -> Iterator[FieldError]:
    field = "metadata.ownerReferences"
    for owner in owners:
        for part in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(part):
                what = "version must" if part == "apiVersion" else "must"
                yield invalid(f"{field}.{part}", owner.get(part, ""), f"{what} not be empty")
    controllers = [owner for owner in owners if owner.get("controller")]
    if len(controllers) > 1:
        names = " and ".join(owner.get("name", "") for owner in controllers[:2])
        yield invalid(
            field,
            owners,
            f'Only one reference can have Controller set to true. Found "true" in references for {names}',
        )


class Stamps:
    """Times and identities for new objects; the clock and the randomness are given."""

    def __init__(self, *, clock: Clock, randomness: random.Random | None = None) -> None:
        self._clock = clock
        self._random = randomness or random.SystemRandom()

    def moment(self) -> dt.datetime:
        """Return the present."""
        return self._clock.now()

    def now(self, *, ahead: float = 0.0) -> str:
        """Return the present, or some seconds later, as metadata writes it."""
        return (self._clock.now() + dt.timedelta(seconds=ahead)).strftime("%Y-%m-%dT%H:%M:%SZ")

    def uid(self) -> str:
        """Return a new uid."""
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

    def name(self, prefix: str) -> str:
        """Return a name made of a prefix and five random characters."""
        suffix = "".join(self._random.choices(_ALPHABET, k=_SUFFIX))
        return prefix[: _NAME_LIMIT - _SUFFIX] + suffix
