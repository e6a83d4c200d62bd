"""Autoscalers that own a target while it is awake. A new one is a file here and a line below."""

from __future__ import annotations

from elasti.operator.autoscalers.hpa import Hpa
from elasti.operator.autoscalers.keda import Keda

AUTOSCALERS = (Keda, Hpa)
