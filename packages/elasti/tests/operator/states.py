"""What a leader remembers, made for a test: fields go to the record that has them."""

from __future__ import annotations

import dataclasses
from typing import Any

from elasti.api.states import State
from elasti.operator.model.state import ServiceState


def service_state(current: State | None = None, **fields: Any) -> ServiceState:
    state = ServiceState("u", "web")
    records = [getattr(state, field.name) for field in dataclasses.fields(state)[2:]]
    for name, value in {"current": current, **fields}.items():
        (record,) = (record for record in records if hasattr(record, name))
        setattr(record, name, value)
    return state
