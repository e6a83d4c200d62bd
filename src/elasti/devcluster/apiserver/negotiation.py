"""Which representation a client wants: whole objects, a table for people, or metadata only."""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING

from elasti.devcluster.apiserver import status

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class Shape(enum.Enum):
    """What is sent in place of an object."""

    WHOLE = ""
    TABLE = "Table"
    PARTIAL = "PartialObjectMetadata"
    PARTIAL_LIST = "PartialObjectMetadataList"


@dataclasses.dataclass(frozen=True, slots=True)
class Accepted:
    """The representation chosen, in which version of its own, and whether as YAML."""

    shape: Shape = Shape.WHOLE
    yaml: bool = False
    meta_version: str = "meta.k8s.io/v1"

    @property
    def content_type(self) -> str:
        """The response's content type."""
        return "application/yaml" if self.yaml else "application/json"


_META_VERSIONS = ("meta.k8s.io/v1", "meta.k8s.io/v1beta1")


def negotiate(header: str) -> Accepted:
    """Choose the first offer that is served; 406 where there is none."""
    offers = list(_offers(header or "*/*"))
    for media, parameters in offers:
        chosen = _choose(media, parameters)
        if chosen is not None:
            return chosen
    served = "application/json, application/yaml"
    if any(media == "application/json" for media, _ in offers):
        raise status.failure(
            406, "NotAcceptable", f"only the following media types are accepted: {served}"
        )
    raise status.failure(
        406, "NotAcceptable", f"406: Not Acceptable\n\nAvailable representations: {served}"
    )


def _choose(media: str, parameters: Mapping[str, str]) -> Accepted | None:
    yaml = media in ("application/yaml", "application/x-yaml", "text/yaml")
    if not yaml and media not in ("application/json", "application/*", "*/*", "text/plain"):
        return None
    wanted = parameters.get("as", "")
    if not wanted:
        return Accepted(yaml=yaml)
    version = f"{parameters.get('g')}/{parameters.get('v')}"
    if version not in _META_VERSIONS:
        return None
    if wanted not in [shape.value for shape in Shape if shape is not Shape.WHOLE]:
        return None
    return Accepted(Shape(wanted), yaml, version)


def _offers(header: str) -> Iterator[tuple[str, dict[str, str]]]:
    for offer in header.split(","):
        media, *rest = (part.strip() for part in offer.split(";"))
        pairs = (part.partition("=") for part in rest)
        yield media.lower(), {name: value for name, _, value in pairs}
