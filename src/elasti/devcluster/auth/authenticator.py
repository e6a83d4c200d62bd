"""Bearer tokens of ServiceAccounts, as one authenticator in the gate's row."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from elasti.devcluster.apiserver import status
from elasti.devcluster.auth.jwt import TokenError

if TYPE_CHECKING:
    from elasti.devcluster.apiserver.auth import Credentials, User
    from elasti.devcluster.auth.accounts import AccountTokens

_log = logging.getLogger(__name__)


class AccountAuthenticator:
    """Believes tokens that are meant for the API server."""

    def __init__(self, tokens: AccountTokens) -> None:
        self._tokens = tokens

    async def authenticate(self, credentials: Credentials) -> User | None:
        """Return the ServiceAccount; 401 for a token of ours that does not hold."""
        if not credentials.token or not self._tokens.is_ours(credentials.token):
            return None
        try:
            user, _ = self._tokens.believe(credentials.token, self._tokens.audiences)
        except TokenError as error:
            # The caller learns nothing, as with Kubernetes; whoever runs the server may.
            _log.info("a bearer token was refused: %s", error)
            raise status.failure(401, "Unauthorized", "Unauthorized") from error
        return user
