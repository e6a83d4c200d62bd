"""Parameters of list and watch requests, as values."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ListOptions:
    """A list request. Empty strings and 0 are left out of the query.

    `resource_version=None` leaves the parameter out; "" asks for the same thing explicitly in
    client-go's words (a consistent read), so both send nothing.
    """

    label_selector: str = ""
    field_selector: str = ""
    limit: int = 0
    continue_token: str = ""
    resource_version: str = ""
    resource_version_match: str = ""
    timeout_seconds: int = 0

    def query(self) -> dict[str, str]:
        """Return the query parameters."""
        return _present(
            labelSelector=self.label_selector,
            fieldSelector=self.field_selector,
            limit=str(self.limit or ""),
            resourceVersion=self.resource_version,
            resourceVersionMatch=self.resource_version_match,
            timeoutSeconds=str(self.timeout_seconds or ""),
        ) | _present(**{"continue": self.continue_token})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WatchOptions:
    """A watch request; `send_initial_events` turns it into a streaming list."""

    label_selector: str = ""
    field_selector: str = ""
    resource_version: str = ""
    resource_version_match: str = ""
    timeout_seconds: int = 0
    allow_bookmarks: bool = True
    send_initial_events: bool = False

    def query(self) -> dict[str, str]:
        """Return the query parameters."""
        return {"watch": "true"} | _present(
            labelSelector=self.label_selector,
            fieldSelector=self.field_selector,
            resourceVersion=self.resource_version,
            resourceVersionMatch=self.resource_version_match,
            timeoutSeconds=str(self.timeout_seconds or ""),
            allowWatchBookmarks="true" if self.allow_bookmarks else "",
            sendInitialEvents="true" if self.send_initial_events else "",
        )


def _present(**parameters: str) -> dict[str, str]:
    return {name: value for name, value in parameters.items() if value}
