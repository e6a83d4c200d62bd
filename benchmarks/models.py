"""The Structs that benchmarks decode pods into."""

from __future__ import annotations

import msgspec

from kubeloop.objects.meta import SlimMeta


class SlimCondition(msgspec.Struct, gc=False):
    """Type and status of a condition."""

    type: str
    status: str


class SlimSpec(msgspec.Struct, rename="camel", gc=False):
    """Where a pod runs."""

    node_name: str = ""


class SlimStatus(msgspec.Struct, rename="camel", gc=False):
    """What a pod does."""

    phase: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")
    conditions: tuple[SlimCondition, ...] | None = None


class SlimPod(msgspec.Struct, gc=False):
    """A pod as a controller of endpoints would want it."""

    metadata: SlimMeta
    spec: SlimSpec = msgspec.field(default_factory=SlimSpec)
    status: SlimStatus = msgspec.field(default_factory=SlimStatus)
