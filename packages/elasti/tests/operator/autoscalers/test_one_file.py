"""An autoscaler is a name and one file: validation, the definition, the rights and the commands follow."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import elasti

SOURCE = Path(elasti.__file__).parent
NAME = """AUTOSCALER_KINDS = {
    "third": AutoscalerKind("Third", "example.com/v1/thirds", "a Third"),
"""
MODULE = """
from elasti.api.rbac import PolicyRule
from elasti.operator.autoscalers.base import Autoscaler


class Third(Autoscaler):
    type = "third"
    rules = (PolicyRule("example.com", ("thirds",), ("get",), "warnings"),)


AUTOSCALER = Third
"""
SHOW = """
import json
import sys
from elasti.api.crd import custom_resource_definition
from elasti.api.types import AutoscalerSpec, ElastiServiceSpec, ScaleTargetRef
from elasti.api.validation import problems
from elasti.operator import autoscalers, rbac

spec = ElastiServiceSpec(ScaleTargetRef("apps/v1", "Deployment", "web"), "web", autoscaler=AutoscalerSpec("third", "x"))
version = custom_resource_definition()["spec"]["versions"][0]
fields = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["autoscaler"]["properties"]
json.dump({
    "allowed": fields["type"]["enum"],
    "explained": "third: a Third;" in fields["type"]["description"],
    "problems": [str(one) for one in problems(spec)],
    "used": [one.__name__ for one in autoscalers.AUTOSCALERS],
    "rights": [rule.verbs for rule in rbac.NAMESPACED_RULES if rule.group == "example.com"],
    "enrolment": [rule.verbs for rule in rbac.ENROLMENT_RULES if rule.group == "example.com"],
}, sys.stdout)
"""


def test_a_third_autoscaler_is_a_name_and_one_file(tmp_path: Path):
    package = tmp_path / "elasti"
    shutil.copytree(SOURCE, package, ignore=shutil.ignore_patterns("__pycache__"))
    types = package / "api" / "types.py"
    types.write_text(types.read_text().replace("AUTOSCALER_KINDS = {\n", NAME))
    (package / "operator" / "autoscalers" / "third.py").write_text(MODULE)
    found = subprocess.run(
        [sys.executable, "-c", SHOW],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        check=True,
    )
    assert json.loads(found.stdout) == {
        "allowed": ["hpa", "keda", "third"],
        "explained": True,
        "problems": [],
        "used": ["Third", "Hpa", "Keda"],
        "rights": [["get"]],
        "enrolment": [["list"]],
    }
