"""Every record of what is remembered has one writer: the module that defines it."""

from __future__ import annotations

import ast
import dataclasses
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import elasti.operator
from elasti.operator.model.doze import DozeRecord
from elasti.operator.model.observing import ObservingState
from elasti.operator.model.own_writes import OwnWrites
from elasti.operator.model.records import AutoscalerState, ListingState, ScaleConflict
from elasti.operator.model.requests import RequestState
from elasti.operator.model.state import HandoverState, ServiceState
from elasti.operator.model.workers import WorkerState

ROOT = Path(elasti.operator.__path__[0])
RECORDS = (
    AutoscalerState,
    DozeRecord,
    HandoverState,
    ListingState,
    ObservingState,
    OwnWrites,
    RequestState,
    ScaleConflict,
    WorkerState,
)
CHANGERS = {"add", "append", "clear", "discard", "extend", "pop", "remove", "setdefault", "update"}


def changed(tree: ast.AST) -> Iterator[ast.Attribute]:
    """Iterate over the attributes of other objects that a module assigns, deletes or mutates."""
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        match node:
            case ast.Assign() | ast.Delete():
                targets = list(node.targets)
            case ast.AugAssign() | ast.AnnAssign():
                targets = [node.target]
            case ast.Call(func=ast.Attribute(value=value, attr=attr)) if attr in CHANGERS:
                targets = [value]
        while targets:
            match targets.pop():
                case ast.Tuple(elts=parts) | ast.List(elts=parts):
                    targets += parts
                case ast.Subscript(value=container):
                    targets.append(container)
                case ast.Attribute(value=ast.Name(id="self")):
                    continue  # its own class's
                case ast.Attribute() as attribute:
                    yield attribute


@pytest.mark.parametrize("record", RECORDS)
def test_a_record_is_written_by_its_own_module_alone(record: type):
    owner = importlib.import_module(record.__module__).__file__
    fields = {field.name for field in dataclasses.fields(record)}
    found = [
        f"{path.relative_to(ROOT)}:{attribute.lineno} writes {attribute.attr}"
        for path in sorted(ROOT.rglob("*.py"))
        if str(path) != owner
        for attribute in changed(ast.parse(path.read_text()))
        # Only what is reached through a record: others have fields of the same name.
        if attribute.attr in fields and _reaches_record(attribute.value)
    ]
    assert found == []


def _reaches_record(node: ast.expr) -> bool:
    """Whether an expression looks like a state, or one of its records."""
    records = {field.name for field in dataclasses.fields(ServiceState)} - {"uid", "service"}
    words = records | {"state", "former", "partner", "known"}
    return (isinstance(node, ast.Attribute) and node.attr in words) or (
        isinstance(node, ast.Name) and node.id in words
    )


def test_every_record_is_watched():
    state = ServiceState("u", "web")
    held = [getattr(state, field.name) for field in dataclasses.fields(state)[2:]]
    # The notifier's own set is not a record.
    assert {type(one) for one in held if one is not state.notified} == set(RECORDS)


def test_a_write_from_elsewhere_would_be_found():
    tree = ast.parse(
        "state.handover.current = None\nlisting.verified.add(1)\nstate.requests.wake |= x"
    )
    found = {part.attr for part in changed(tree) if _reaches_record(part.value)}
    assert found == {"current", "verified", "wake"}
