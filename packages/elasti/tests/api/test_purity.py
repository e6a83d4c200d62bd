"""elasti.api is pure: using all of it loads neither I/O nor the readers of triggers."""

from __future__ import annotations

import subprocess
import sys

_USE = """
import importlib, json, pkgutil, sys
import elasti.api
for found in pkgutil.walk_packages(elasti.api.__path__, "elasti.api."):
    importlib.import_module(found.name)
import msgspec
from elasti.api.crd import custom_resource_definition
from elasti.api.triggers.registry import trigger_types
from elasti.api.types import ElastiServiceSpec
from elasti.api.validation import problems

needed = {
    "http": {"path": "/busy", "expression": "yes"},
    "keda": {"scaledObject": "web"},
    "pods": {"metric": "requests_total"},
    "prometheus": {"query": "up", "serverAddress": "http://prometheus:9090"},
}
triggers = [
    {"type": name, "metadata": {"threshold": 1} | needed.get(name, {})} for name in trigger_types()
]
target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
spec = msgspec.convert(
    {"service": "web", "scaleTargetRef": target, "triggers": triggers}, ElastiServiceSpec
)
assert problems(spec) == [], problems(spec)
assert len({trigger.effective_role for trigger in spec.triggers}) == 2
json.dumps(custom_resource_definition())
impure = {"aiohttp", "asyncio", "socket", "ssl", "logging"}
print(sorted(name for name in sys.modules if name in impure or name.startswith("elasti.triggers")))
"""


def test_nothing_that_does_io_is_loaded():
    run = subprocess.run([sys.executable, "-c", _USE], capture_output=True, text=True, check=False)
    assert run.stderr == ""
    assert run.stdout.strip() == "[]"
