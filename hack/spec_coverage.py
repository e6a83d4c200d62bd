"""Show which numbered behaviours of docs/spec.md have tests; fail where one has none.

Reads the markers from the tests' syntax trees, so nothing is imported or run. A number without a
test passes only when docs/spec-deviations.md has a row for it.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SPEC_LINE = re.compile(r"- ([A-Z]\d+): (.*)")
DEVIATION_ROW = re.compile(r"\|\s*([A-Z]\d+(?:\s*[,-]\s*[A-Z]?\d+)*)\s*\|")


def spec_sections(text: str) -> dict[str, dict[str, str]]:
    """Read {section: {id: sentence}} from the specification."""
    sections: dict[str, dict[str, str]] = {}
    current: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("## "):
            current = sections.setdefault(line[3:], {})
        elif match := SPEC_LINE.match(line):
            current[match[1]] = match[2]
    return {title: ids for title, ids in sections.items() if ids}


def deviations(text: str) -> set[str]:
    """Read the ids in the first column of the deviations table: `R1`, `Q20-Q24`, `R1, R2`."""
    found: set[str] = set()
    for line in text.splitlines():
        if match := DEVIATION_ROW.match(line):
            for part in match[1].split(","):
                found |= set(_expand(part.strip()))
    return found


def _expand(part: str) -> list[str]:
    first, _, last = (piece.strip() for piece in part.partition("-"))
    if not last:
        return [first]
    letter = first[0]
    return [f"{letter}{n}" for n in range(int(first[1:]), int(last.lstrip(letter)) + 1)]


def marked_tests(root: Path) -> dict[str, list[str]]:
    """Find {id: [file::test]} over all test files."""
    found: dict[str, list[str]] = {}
    for path in sorted(
        (*root.glob("tests/**/test_*.py"), *root.glob("packages/*/tests/**/test_*.py"))
    ):
        tree = ast.parse(path.read_text())
        for name, node in _tests(tree):
            for spec_id in _spec_ids(node):
                found.setdefault(spec_id, []).append(f"{path.relative_to(ROOT)}::{name}")
    return found


def _tests(
    tree: ast.Module,
) -> list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return [(node.name, node) for node in ast.walk(tree) if isinstance(node, kinds)]


def _spec_ids(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> list[str]:
    calls = [item for item in node.decorator_list if isinstance(item, ast.Call)]
    return [
        argument.value
        for call in calls
        if ast.unparse(call.func) == "pytest.mark.spec"
        for argument in call.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    ]


def main() -> int:
    """Print the table; return 1 where the cover has a hole or a test names an unknown id."""
    sections = spec_sections((ROOT / "docs/spec.md").read_text())
    excused = deviations((ROOT / "docs/spec-deviations.md").read_text())
    tests = marked_tests(ROOT)
    known = {spec_id for ids in sections.values() for spec_id in ids}
    missing: list[str] = []
    for title, ids in sections.items():
        print(f"\n{title}")
        for spec_id, sentence in ids.items():
            proofs = tests.get(spec_id, [])
            note = "" if proofs else ("  (deviation)" if spec_id in excused else "  NO TEST")
            print(f"  {spec_id:<4} {sentence}{note}")
            for proof in proofs:
                print(f"         {proof}")
            if not proofs and spec_id not in excused:
                missing.append(spec_id)
    unknown = sorted(set(tests) - known)
    covered = sum(spec_id in tests for spec_id in known)
    print(f"\n{covered} of {len(known)} behaviours have tests, {len(excused & known)} deviations")
    if missing:
        print(f"without a test or a deviation: {' '.join(missing)}")
    if unknown:
        print(f"tests name behaviours that docs/spec.md does not have: {' '.join(unknown)}")
    return 1 if missing or unknown else 0


if __name__ == "__main__":
    sys.exit(main())
