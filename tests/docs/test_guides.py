"""What the pages show must exist: Python blocks compile and import, links and tables are true."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

import msgspec
import pytest

from elasti.api.parsing import parse_duration
from elasti.api.types import ElastiServiceSpec, HandoverSpec, SleepSpec, WakeSpec
from elasti.operator.settings import OperatorSettings
from elasti.resolver.settings import ResolverSettings
from tests.docs.pages import PAGES, ROOT, Block, blocks, named

CONFIGURING = (ROOT / "docs" / "guide" / "configuring.md").read_text()
VARIABLES = (ROOT / "docs" / "reference" / "variables.md").read_text()


# All other pages have blocks that are run: tests/docs/test_kubeloop_guides.py.
@named([block for block in blocks("python") if "/adr/" in block.where])
def test_a_block_of_a_decision_compiles_and_imports_what_exists(block: Block):
    tree = ast.parse(block.text, filename=block.where)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            module = importlib.import_module(node.module or "")
            for alias in node.names:
                found = hasattr(module, alias.name) or importlib.util.find_spec(
                    f"{node.module}.{alias.name}"
                )
                assert found, f"{node.module} has no {alias.name}"


def anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^a-z0-9_ -]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_a_page_lead_somewhere(page: Path):
    for link, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", page.read_text()):
        goal = page.parent / link if link else page
        assert goal.exists(), f"{page.name} links to {link}"
        assert not anchor or anchor in anchors(goal), f"{page.name} links to {link}#{anchor}"


@pytest.mark.parametrize("program", ["operator", "resolver"])
def test_every_variable_of_a_program_is_explained(program):
    settings = importlib.import_module(f"elasti.{program}.settings")
    part = VARIABLES.split(f"## The {program}'s variables")[1].split("\n## ")[0]
    assert [name for name in settings.VARIABLES if f"`{name}`" not in part] == []


def test_every_field_of_an_elasti_service_is_explained():
    part = CONFIGURING.split("## Every field")[1].split("\n## ")[0]
    parts = {"wake": WakeSpec, "sleep": SleepSpec, "handover": HandoverSpec}
    fields = [name for name in ElastiServiceSpec.__struct_encode_fields__ if name not in parts]
    fields += [f"{part}.{n}" for part, kind in parts.items() for n in kind.__struct_encode_fields__]
    assert [name for name in fields if f"`{name}`" not in part] == []


def stated_defaults(page: str, heading: str) -> dict[str, float]:
    """The numbers and durations that a table of a page names as defaults, by variable."""
    part = page.split(f"## {heading}")[1].split("\n## ", maxsplit=1)[0]
    found = {}
    for names, values in re.findall(r"^\| ([^|]+) \| ([^|]+) \|", part, re.MULTILINE):
        values = [value.strip().strip("`") for value in values.split(",")]
        for name, value in zip(re.findall(r"`([^`]+)`", names), values, strict=False):
            if value[:1].isdigit():
                found[name] = float(value) if value.isdigit() else parse_duration(value)
    return found


@pytest.mark.parametrize(
    ("program", "settings"), [("operator", OperatorSettings()), ("resolver", ResolverSettings())]
)
def test_the_defaults_of_variables_are_those_of_the_program(program, settings):
    module = importlib.import_module(f"elasti.{program}.settings")
    stated = stated_defaults(VARIABLES, f"The {program}'s variables")
    assert {"ELASTI_ENGAGE_SETTLE"} <= set(stated)
    actual = {name: getattr(settings, module.VARIABLES[name][0]) for name in stated}
    assert stated == actual


def test_the_defaults_of_fields_are_those_of_the_type():
    stated = stated_defaults(CONFIGURING, "Every field")
    assert {"cooldownPeriod", "wake.maxHeld"} <= set(stated)
    actual = {
        field.encode_name: field.default for field in msgspec.structs.fields(ElastiServiceSpec)
    }
    wake = {field.encode_name: field.default for field in msgspec.structs.fields(WakeSpec)}
    actual |= {f"wake.{name}": default for name, default in wake.items()}
    assert stated == {name: actual[name] for name in stated}
