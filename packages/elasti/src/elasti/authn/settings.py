"""How callers are checked, as an installer chooses it; both programs read the same variables.

| `ELASTI_AUTHENTICATION` | |
|---|---|
| `Auto` | by TokenReview if that is allowed, else by the cluster's keys |
| `TokenReview` | by the API server, which also knows deleted accounts; needs a cluster role |
| `JWKS` | by the cluster's keys; needs no role, and tokens of deleted accounts are valid until they expire |
| `None` | not at all: only if a NetworkPolicy keeps the port closed |

`ELASTI_TOKEN_KEYS_FILE` and `ELASTI_TOKEN_ISSUERS` give the keys of a cluster that does not publish them.
`ELASTI_TLS_DIRECTORY` and `ELASTI_TLS_REQUIRED` are about the way that tokens take (`elasti.authn.tls`).
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any, Self
from urllib.parse import unquote

from elasti.api.parsing import (
    SettingsError,
    Variables,
    is_http_url,
    parse_bool,
    parse_count,
    parse_list,
)


class AuthenticationMode(enum.Enum):
    """How callers are checked."""

    AUTO = "Auto"
    TOKEN_REVIEW = "TokenReview"  # noqa: S105 -- a way to check tokens, not one of them
    JWKS = "JWKS"
    NONE = "None"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AuthnSettings:
    """The settings of authentication, which both programs share."""

    authenticate: bool = True
    authentication: AuthenticationMode = AuthenticationMode.AUTO
    token_issuers: tuple[str, ...] = ()
    token_keys_file: str = ""
    allowed_callers: tuple[str, ...] = ()
    """Users that may call; a trailing `*` matches any ending."""
    tls_directory: str = ""
    """Where ca.crt, tls.crt and tls.key are mounted; empty: the programs call each other in the clear."""
    tls_required: bool = False
    """Neither send nor accept a token in the clear."""
    otlp_endpoint: str = dataclasses.field(default="", repr=False)
    otlp_traces_endpoint: str = dataclasses.field(default="", repr=False)
    otlp_headers: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)
    otlp_timeout: int = 10_000
    """In milliseconds."""
    otel_service: str = ""
    otel_resource: Mapping[str, str] = dataclasses.field(default_factory=dict)
    otel_disabled: bool = False

    @classmethod
    def with_overrides(cls, values: Mapping[str, Any], overrides: Mapping[str, Any]) -> Self:
        """Return settings; `overrides` (from flags) that are not None win.

        Raises SettingsError.
        """
        given = {name: value for name, value in overrides.items() if value is not None}
        settings = cls(**{**values, **given})
        settings.check()
        return settings

    @property
    def traces_url(self) -> str:
        """Where spans go; empty: nowhere."""
        base = f"{self.otlp_endpoint.rstrip('/')}/v1/traces" if self.otlp_endpoint else ""
        return "" if self.otel_disabled else self.otlp_traces_endpoint or base

    @property
    def authentication_mode(self) -> AuthenticationMode:
        """How callers are checked: not at all if `authenticate` is off."""
        return self.authentication if self.authenticate else AuthenticationMode.NONE

    def check(self) -> None:
        """Raise SettingsError for settings that contradict each other."""
        if self.token_keys_file and not self.token_issuers:
            raise SettingsError(
                "ELASTI_TOKEN_KEYS_FILE: give ELASTI_TOKEN_ISSUERS too, the `iss` of the cluster's"
                " tokens (kube-apiserver's --service-account-issuer)"
            )
        if self.tls_required and not self.tls_directory:
            raise SettingsError(
                "ELASTI_TLS_REQUIRED: give ELASTI_TLS_DIRECTORY too, where the Secret with ca.crt, tls.crt and"
                " tls.key is mounted"
            )


def parse_authentication_mode(text: str) -> AuthenticationMode:
    """Read a way to check callers. Raises ValueError."""
    for way in AuthenticationMode:
        if way.value.lower() == text.lower():
            return way
    ways = ", ".join(way.value for way in AuthenticationMode)
    raise ValueError(f"{text!r} is not a way to check callers; write one of {ways}")


def _parse_url(text: str) -> str:
    # Without the value, which may be a secret.
    if not is_http_url(text):
        raise ValueError("it is not a URL; write one such as http://collector.observability:4318")
    return text


def _parse_pairs(text: str) -> dict[str, str]:
    parts = [part.partition("=") for part in parse_list(text)]
    if not all(sign and name.strip() for name, sign, _ in parts):
        raise ValueError("it is not a list such as name=value,name=value")
    return {name.strip(): unquote(value.strip()) for name, _, value in parts}


AUTHN_VARIABLES: Variables = {
    "ELASTI_AUTHENTICATE": ("authenticate", parse_bool),
    "ELASTI_ALLOWED_CALLERS": ("allowed_callers", parse_list),
    "ELASTI_AUTHENTICATION": ("authentication", parse_authentication_mode),
    "ELASTI_TOKEN_ISSUERS": ("token_issuers", parse_list),
    "ELASTI_TOKEN_KEYS_FILE": ("token_keys_file", str),
    "ELASTI_TLS_DIRECTORY": ("tls_directory", str),
    "ELASTI_TLS_REQUIRED": ("tls_required", parse_bool),
    "OTEL_EXPORTER_OTLP_ENDPOINT": ("otlp_endpoint", _parse_url),
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": ("otlp_traces_endpoint", _parse_url),
    "OTEL_EXPORTER_OTLP_HEADERS": ("otlp_headers", _parse_pairs),
    "OTEL_EXPORTER_OTLP_TIMEOUT": ("otlp_timeout", parse_count),
    "OTEL_SERVICE_NAME": ("otel_service", str),
    "OTEL_RESOURCE_ATTRIBUTES": ("otel_resource", _parse_pairs),
    "OTEL_SDK_DISABLED": ("otel_disabled", parse_bool),
}
