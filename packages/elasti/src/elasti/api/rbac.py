"""A program's rights at the API server, as data: rules with their reasons. Pure."""

from __future__ import annotations

from typing import NamedTuple

from kubeloop.objects.meta import JsonObject

READ = ("get", "list", "watch")


class PolicyRule(NamedTuple):
    """The verbs allowed on which resources, and why; `names` restricts the rule to those objects."""

    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    why: str
    names: tuple[str, ...] = ()

    def to_json(self) -> JsonObject:
        """Return it as a PolicyRule."""
        rule: JsonObject = {
            "apiGroups": [self.group],
            "resources": list(self.resources),
            "verbs": list(self.verbs),
        }
        return rule | ({"resourceNames": list(self.names)} if self.names else {})
