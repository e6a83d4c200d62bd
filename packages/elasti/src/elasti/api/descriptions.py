"""What the schema says about a field."""

from __future__ import annotations

from msgspec import Meta


def about(description: str, **limits: int | str | list[str]) -> Meta:
    """Return a description, with limits that the API server checks and decoding does not."""
    return Meta(description=description, extra_json_schema=dict(limits) or None)
