"""An installation as text: YAML documents with their reasons above them, or one JSON List. Pure."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from elasti.cli.rendering import render

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elasti.cli.install.parts import Part


def as_text(parts: Sequence[Part], output: str) -> str:
    """Return the parts as `yaml` or `json`."""
    if output == "json":
        items = [part.obj for part in parts]
        return render({"apiVersion": "v1", "kind": "List", "items": items}, output)
    return "".join(f"---\n{_comment(part.why)}{render(part.obj, output)}" for part in parts)


def _comment(why: str) -> str:
    return "".join(f"# {line}\n" for line in textwrap.wrap(why, 96))
