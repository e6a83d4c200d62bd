"""The issuer's public documents: how others check tokens without asking the API server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from elasti.devcluster.apiserver import status
from elasti.devcluster.apiserver.answers import Answer

if TYPE_CHECKING:
    from aiohttp import web

    from elasti.devcluster.apiserver.auth import User
    from elasti.devcluster.apiserver.paths import Paths
    from elasti.devcluster.apiserver.request import Attributes
    from elasti.devcluster.auth.accounts import AccountTokens

KEYS = "/openid/v1/jwks"
CONFIGURATION = "/.well-known/openid-configuration"


class IssuerDocuments:
    """Answers the two paths of OpenID discovery."""

    def __init__(self, tokens: AccountTokens) -> None:
        self._tokens = tokens

    def serve(self, paths: Paths) -> None:
        """Answer at the usual places."""
        paths.serve(KEYS, self._keys)
        paths.serve(CONFIGURATION, self._configuration)

    async def _keys(self, request: web.BaseRequest, attributes: Attributes, user: User) -> Answer:
        del request, user
        _read_only(attributes)
        body = msgspec.json.encode(self._tokens.key.public_keys())
        return Answer(body=body, content_type="application/jwk-set+json")

    async def _configuration(
        self, request: web.BaseRequest, attributes: Attributes, user: User
    ) -> Answer:
        del user
        _read_only(attributes)
        document = {
            "issuer": self._tokens.issuer,
            "jwks_uri": f"https://{request.host}{KEYS}",
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["ES256"],
        }
        return Answer(body=msgspec.json.encode(document))


def _read_only(attributes: Attributes) -> None:
    if attributes.verb != "get":
        raise status.method_not_allowed()
