"""Alter the sentences that operator and triggers write, in a copy of the package, and run their tests on the copy.

Any sentence may be reworded: tests of behaviour know a refusal by its reason, and by the field, value, name or
command in it. What fails here compares prose. Arguments go to pytest; if none is a path, all tests of both are run.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "packages" / "elasti" / "src" / "elasti"
PLACES = ("operator/**/*.py", "triggers/*.py", "api/conditions.py", "api/states.py")
TESTS = ("packages/elasti/tests/operator", "packages/elasti/tests/triggers")
# Words that no name, field or command has.
WORD = re.compile(
    r"\b(the|is|are|not|so|was|its|and|of|no|has|with|that|which|it|an?|be|cannot|to|by|for|does|did|after|while)\b"
)
NO_SENTENCE = re.compile(r"\(\?|self\.|==|HTTP/1")


class Reworded(ast.NodeTransformer):
    """Writes each sentence with other words; what is quoted, named or counted in it stays."""

    def __init__(self) -> None:
        self.count = 0

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        """Leave docstrings alone."""
        return node if isinstance(node.value, ast.Constant) else self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Leave what is for debuggers alone."""
        return node if node.name == "__repr__" else self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        """Alter a string that is a sentence, or a part of one."""
        text = node.value
        if not isinstance(text, str) or len(text.split()) < 2 or NO_SENTENCE.search(text):
            return node
        altered = WORD.sub(r"\1zz", text)
        self.count += altered != text
        return ast.copy_location(ast.Constant(altered), node)


def main(arguments: list[str]) -> int:
    """Return pytest's exit code."""
    with tempfile.TemporaryDirectory() as directory:
        package = Path(directory) / "elasti"
        shutil.copytree(SOURCE, package, ignore=shutil.ignore_patterns("__pycache__"))
        reworded = Reworded()
        for path in (path for place in PLACES for path in package.glob(place)):
            tree = reworded.visit(ast.parse(path.read_text()))
            path.write_text(ast.unparse(ast.fix_missing_locations(tree)))
        print(f"{reworded.count} sentences altered")
        given = any((ROOT / one.partition("::")[0]).exists() for one in arguments)
        command = [sys.executable, "-m", "pytest", "-m", "not controlplane", *arguments]
        command += () if given else TESTS
        env = {**os.environ, "PYTHONPATH": directory}
        return subprocess.run(command, cwd=ROOT, env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
