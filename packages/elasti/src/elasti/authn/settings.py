"""How callers are checked, as an installer chooses it; both programs read the same variables.

| `ELASTI_AUTHENTICATION` | |
|---|---|
| `Auto` | by TokenReview where that is allowed, else by the cluster's keys |
| `TokenReview` | by the API server, which also knows deleted accounts; needs a cluster role |
| `JWKS` | by the cluster's keys: no role at all, and tokens of deleted accounts live until they end |
| `None` | not at all: only where a NetworkPolicy keeps the port closed |

`ELASTI_TOKEN_KEYS_FILE` and `ELASTI_TOKEN_ISSUERS` give the keys where a cluster does not show them.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any, Self

from elasti.api.parsing import SettingsError, Variables, parse_bool, parse_list


class AuthenticationMode(enum.Enum):
    """How callers are checked."""

    AUTO = "Auto"
    TOKEN_REVIEW = "TokenReview"  # noqa: S105 -- a way to check tokens, not one of them
    JWKS = "JWKS"
    NONE = "None"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AuthnSettings:
    """All of it; the settings of either program have it too.

    allowed_callers: users that may call, a trailing `*` for any ending.
    """

    authenticate: bool = True
    authentication: AuthenticationMode = AuthenticationMode.AUTO
    token_issuers: tuple[str, ...] = ()
    token_keys_file: str = ""
    allowed_callers: tuple[str, ...] = ()

    @classmethod
    def with_overrides(cls, values: Mapping[str, Any], overrides: Mapping[str, Any]) -> Self:
        """Return settings; `overrides` (from flags) win where they are not None.

        Raises SettingsError.
        """
        given = {name: value for name, value in overrides.items() if value is not None}
        settings = cls(**{**values, **given})
        settings.check()
        return settings

    @property
    def authentication_mode(self) -> AuthenticationMode:
        """How callers are checked; not at all where `authenticate` says so."""
        return self.authentication if self.authenticate else AuthenticationMode.NONE

    def check(self) -> None:
        """Raise SettingsError for what does not go together."""
        if self.token_keys_file and not self.token_issuers:
            raise SettingsError(
                "ELASTI_TOKEN_KEYS_FILE: give ELASTI_TOKEN_ISSUERS too, the `iss` of the cluster's"
                " tokens (kube-apiserver's --service-account-issuer)"
            )


def parse_authentication_mode(text: str) -> AuthenticationMode:
    """Read a way to check callers. Raises ValueError."""
    for way in AuthenticationMode:
        if way.value.lower() == text.lower():
            return way
    ways = ", ".join(way.value for way in AuthenticationMode)
    raise ValueError(f"{text!r} is none of {ways}")


AUTHN_VARIABLES: Variables = {
    "ELASTI_AUTHENTICATE": ("authenticate", parse_bool),
    "ELASTI_ALLOWED_CALLERS": ("allowed_callers", parse_list),
    "ELASTI_AUTHENTICATION": ("authentication", parse_authentication_mode),
    "ELASTI_TOKEN_ISSUERS": ("token_issuers", parse_list),
    "ELASTI_TOKEN_KEYS_FILE": ("token_keys_file", str),
}
