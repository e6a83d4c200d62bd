"""Autoscalers that own a target while it is awake: a module for each of `api.types.AUTOSCALER_KINDS`."""

from __future__ import annotations

import importlib

from elasti.api.types import AUTOSCALER_KINDS
from elasti.operator.autoscalers.base import Autoscaler

AUTOSCALERS: tuple[type[Autoscaler], ...] = tuple(
    importlib.import_module(f"{__name__}.{name}").AUTOSCALER for name in AUTOSCALER_KINDS
)
