"""The troubleshooting guide says what the programs say: every sentence, every reason."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from elasti.api.conditions import Reason
from elasti.cli.exits import ExitCode
from elasti.resolver.proxy.upstream.interface import Refusal

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "packages" / "elasti" / "src" / "elasti"
GUIDE = (ROOT / "docs" / "guide" / "troubleshooting.md").read_text()
SENTENCES = re.findall(r"^ *> (.+)$", GUIDE, re.MULTILINE)
CALLS = {"Obstacle", "Finding", "warning", "TrafficPath"}


def trees() -> list[ast.Module]:
    return [ast.parse(path.read_text()) for path in (SOURCE).rglob("*.py")]


@pytest.fixture(scope="module")
def spoken() -> str:
    """Every text of the sources, what is written in pieces put together."""
    found = []
    for tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                found += [v.value for v in node.values if isinstance(v, ast.Constant)]
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\n".join(map(str, found))


@pytest.mark.parametrize("sentence", SENTENCES)
def test_every_sentence_of_the_guide_is_one_that_a_program_says(sentence: str, spoken: str):
    for part in sentence.split("…"):
        assert part.strip() in spoken


def reasons(directory: str) -> set[str]:
    found = set()
    for path in (SOURCE / directory).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            given: list[ast.expr | None] = []
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in CALLS:
                given += node.args
            elif isinstance(node, ast.Assign):
                given.append(node.value)
            elif isinstance(node, ast.Dict):  # a table of texts by their reasons
                given += [
                    key for key in node.keys if getattr(key, "attr", "") in Reason.__members__
                ]
            for first in given:
                if isinstance(first, ast.Attribute) and first.attr in Reason.__members__:
                    found.add(str(Reason[first.attr]))
    return found


def test_every_reason_is_explained():
    known = reasons("operator")
    assert {"Cooldown", "InUse", "HeadlessService", "SharedPods", "MeshPort"} <= known
    missing = [reason for reason in known if f"`{reason}`" not in GUIDE]
    assert missing == []


def events() -> set[str]:
    """The reasons that are given to the reporter and its recorder by name."""
    return {
        str(one.value)
        for path in (SOURCE / "operator").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if node.func.attr in {"_normal", "warning", "enrolment"} and len(node.args) > 1
        for one in ast.walk(node.args[1])
        if isinstance(one, ast.Constant)
    }


def test_every_event_is_on_its_page():
    page = (ROOT / "docs" / "reference" / "conditions.md").read_text().split("## Events")[1]
    assert {"Suspended", "Resumed", "Enrolled", "FailedToScale", "DozeNotEvicted"} <= events()
    assert {name for name in events() if f"`{name}`" not in page} == set()


def test_every_explained_reason_exists(spoken: str):
    table = GUIDE.split("## Ready is False")[1].split("\n## ")[0]
    sleeping = GUIDE.split("## It never sleeps")[1].split("**A trigger")[0]
    named = re.findall(r"^\| (`[A-Za-z]+`(?:, `[A-Za-z]+`)*) \|", sleeping + table, re.MULTILINE)
    for cell in named:
        for reason in re.findall(r"`([A-Za-z]+)`", cell):
            assert reason in spoken, reason


SOURCES = "".join(path.read_text() for path in (SOURCE / "resolver").rglob("*.py"))


@pytest.mark.parametrize("refusal", [one for one in Refusal if f"Refusal.{one.name}" in SOURCES])
def test_every_refusal_of_the_resolver_is_explained(refusal: Refusal):
    assert f"| {refusal.status} | `{refusal.message}` |" in GUIDE


def test_every_exit_code_is_explained():
    table = GUIDE.split("## A command cannot do its work")[1]
    for code in ExitCode:
        if code is not ExitCode.OK:
            assert f"\n| {int(code)} | " in table


def test_links_within_the_guide_lead_somewhere():
    heads = [
        re.sub(r"[^a-z0-9 -]", "", head.lower())
        for head in re.findall(r"^## (.+)$", GUIDE, re.MULTILINE)
    ]
    anchors = {head.replace(" ", "-") for head in heads}
    assert set(re.findall(r"\]\(#([^)]+)\)", GUIDE)) <= anchors
