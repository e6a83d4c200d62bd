"""Names, ports, ranges and shared defaults are written once, in `elasti.api.names` and `.defaults`."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import elasti
from elasti.api import defaults, names

SOURCE = Path(elasti.__file__).parent
OWNERS = {SOURCE / "api" / "names.py", SOURCE / "api" / "defaults.py"}
WORDS = {names.NAMESPACE, names.VERSION}  # too common to be searched for
_LONG = 20  # so long a name stands for nothing else, also inside of a longer text


def truths() -> set[str | int]:
    known = {
        value
        for module in (names, defaults)
        for name, value in vars(module).items()
        if name.isupper() and not name.startswith("_") and isinstance(value, str | int)
    }
    return known - WORDS - {True, False}


def literals(source: str) -> Iterator[tuple[int, str | int]]:
    """Yield the constants of a module that are no docstrings, with their lines."""
    tree = ast.parse(source)
    prose = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in prose:
            value = node.value
            if isinstance(value, str | int) and not isinstance(value, bool):
                yield node.lineno, value


def repeats(literal: str | int, truth: str | int) -> bool:
    if isinstance(literal, int) or literal == truth:
        return literal == truth
    if isinstance(truth, str):
        return len(truth) >= _LONG and truth in literal
    # 900 may be any number of anything; a port in a text is that port.
    return truth != defaults.COOLDOWN and bool(re.search(rf"(?<![\d.]){truth}\b", literal))


def named_numbers(source: str) -> Iterator[tuple[int, str, float]]:
    """Yield the numbers that are given to a name: a field, a parameter's default, a keyword."""
    for node in ast.walk(ast.parse(source)):
        pairs: list[tuple[str, ast.expr | None]] = []
        if isinstance(node, ast.AnnAssign):
            pairs = [(ast.unparse(node.target), node.value)]
        elif isinstance(node, ast.Assign):
            pairs = [(ast.unparse(target), node.value) for target in node.targets]
        elif isinstance(node, ast.keyword):
            pairs = [(node.arg or "", node.value)]
        elif isinstance(node, ast.arguments):
            positional = [*node.posonlyargs, *node.args]
            pairs = [
                (a.arg, d) for a, d in zip(positional[::-1], node.defaults[::-1], strict=False)
            ]
            pairs += [(a.arg, d) for a, d in zip(node.kwonlyargs, node.kw_defaults, strict=True)]
        for name, value in pairs:
            if not isinstance(value, ast.Constant) or isinstance(value.value, bool):
                continue
            if isinstance(value.value, int | float):
                yield value.lineno, name.split(".")[-1], value.value


def second_truths(source: str) -> list[tuple[int, object]]:
    known = truths()
    found: list[tuple[int, object]] = [
        (line, literal)
        for line, literal in literals(source)
        if any(repeats(literal, truth) for truth in known)
    ]
    # 15.0 may be any number of seconds; under the name of a default it is that default.
    found += [
        (line, f"{name} = {number}")
        for line, name, number in named_numbers(source)
        if name.upper().strip("_") in vars(defaults)
    ]
    return found


@pytest.mark.parametrize(
    "source",
    [
        "PORT = 8013",
        "def serve(port: int = 8012): ...",
        "HELP = 'the admin port; 8013 by default'",
        "HELP = f'{name}: 8081 by default'",
        "RANGE = (20000, 29999)",
        "RESOURCE = 'elasti.truefoundry.com/v1alpha1/elastiservices'",
        "SERVICE = 'elasti-resolver-service'",
        "URL = f'http://elasti-resolver-service.{namespace}.svc'",
        "MANAGER = 'elasti-operator'",
        "COOLDOWN = 900",
        "engage_settle: float = 15.0",
        "def poll(*, polling_interval: float = 30.0): ...",
        "Settings(engage_settle=15.0)",
        "_ENGAGE_SETTLE = 20",
    ],
)
def test_a_second_literal_is_found(source):
    assert second_truths(source)


@pytest.mark.parametrize(
    "source",
    ["'''Port 8013.'''", "X = 18013", "X = 'elasti-operator-targets'", "X = '0.8013'", "X = 900.0"],
)
def test_prose_and_other_values_are_left_alone(source):
    assert not second_truths(source)


def test_every_name_and_default_is_written_once():
    found = [
        f"{path.relative_to(SOURCE)}:{line}: {literal!r}"
        for path in sorted(SOURCE.rglob("*.py"))
        if path not in OWNERS
        for line, literal in second_truths(path.read_text())
    ]
    assert not found, "take them from elasti.api.names or elasti.api.defaults:\n" + "\n".join(found)


def test_help_texts_name_the_defaults():
    """Docstrings of commands are help texts, and have no access to constants."""
    text = (SOURCE / "cli" / "operator.py").read_text()
    for variable, default in {
        "ELASTI_RESOLVER_SERVICE_NAME": names.RESOLVER_SERVICE,
        "ELASTI_RESOLVER_PORT": str(defaults.RESOLVER_ADMIN_PORT),
        "ELASTI_RESOLVER_NAMESPACE": names.NAMESPACE,
        "POLLING_INTERVAL": f"{defaults.POLLING_INTERVAL:.0f}s",
        "ELASTI_ENGAGE_SETTLE": f"{defaults.ENGAGE_SETTLE:.0f}s",
    }.items():
        assert re.search(rf"^ +{variable} +{re.escape(default)}\b", text, re.MULTILINE), variable
