"""Objects as text for people and scripts."""

from __future__ import annotations

from typing import Any

import msgspec
import yaml


def render(obj: Any, output: str) -> str:
    """Return an object as `yaml` or `json`, ending with a line feed."""
    if output == "json":
        return msgspec.json.format(msgspec.json.encode(obj)).decode() + "\n"
    return yaml.safe_dump(obj, sort_keys=False, allow_unicode=True)
