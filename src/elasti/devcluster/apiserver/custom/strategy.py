"""How custom objects behave: pruned, defaulted and judged by their definition's schema."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasti.devcluster.apiserver import names
from elasti.devcluster.apiserver.custom.ratcheting import unchanged
from elasti.devcluster.apiserver.custom.shaping import fill, prune, repeats
from elasti.devcluster.apiserver.schema.conform import Conformer
from elasti.devcluster.apiserver.schema.scalars import DecodeError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elasti.devcluster.apiserver.custom.validation import Validator
    from elasti.devcluster.apiserver.resources import Served
    from elasti.devcluster.apiserver.schema.types import Type
    from elasti.devcluster.apiserver.status import FieldError
    from kubeloop.objects.meta import JsonObject


class CustomStrategy:
    """A kind that a CustomResourceDefinition declares."""

    tracks_generation = True
    blind_update = False

    def __init__(
        self,
        *,
        namespaced: bool,
        metadata: Type,
        validators: Mapping[str, Validator | None],
        selectable: Mapping[str, tuple[str, ...]],
    ) -> None:
        self._namespaced = namespaced
        self._metadata = metadata
        self._validators = validators
        self._selectable = selectable

    @property
    def selectable(self) -> Mapping[str, tuple[str, ...]]:
        """Fields that field selectors may name."""
        return self._selectable

    def decode(self, obj: JsonObject, served: Served) -> tuple[JsonObject, list[str]]:
        """Prune the object; metadata is Kubernetes' own and is decoded strictly."""
        metadata = obj.get("metadata") or {}
        if not isinstance(metadata, dict):
            raise DecodeError("metadata is not an object")
        conformer = Conformer()
        clean = conformer.conform(metadata, self._metadata)
        unknown: list[str] = []
        rest = {name: value for name, value in obj.items() if name != "metadata"}
        pruned = prune(rest, served.type, "", unknown)
        odd = [f"metadata.{path}" for path in conformer.unknown]
        return {**pruned, "metadata": clean}, odd + unknown

    def default(self, obj: JsonObject, served: Served) -> None:
        """Fill in the schema's defaults."""
        fill(obj, served.type)

    def prepare_create(self, obj: JsonObject, served: Served) -> None:
        """Drop a status that is not the user's to set."""
        if "status" in served.subresources:
            obj.pop("status", None)

    def prepare_update(self, new: JsonObject, old: JsonObject, served: Served) -> None:
        """Keep the status as it is."""
        if "status" in served.subresources:
            if "status" in old:
                new["status"] = old["status"]
            else:
                new.pop("status", None)

    def validate(self, obj: JsonObject, served: Served) -> list[FieldError]:
        """Return what is wrong with an object."""
        errors = names.check_metadata(
            obj["metadata"], namespaced=self._namespaced, name_rule=names.dns_subdomain
        )
        validator = self._validators.get(served.version)
        rest = {name: value for name, value in obj.items() if name != "metadata"}
        if validator is not None:
            errors += validator.check(rest)
        errors += repeats(rest, served.type, "")
        return errors

    def ratchet(
        self, errors: list[FieldError], new: JsonObject, old: JsonObject
    ) -> list[FieldError]:
        """Excuse what the change did not touch: the schema may have become stricter since."""
        return [error for error in errors if not unchanged(error, new, old)]

    def validate_update(self, new: JsonObject, old: JsonObject, served: Served) -> list[FieldError]:
        """Have nothing to add."""
        return []
