"""Compile what tests import, on every core, before the workers of `make test` would do it, each for itself.

pytest rewrites the assertions of test modules, which in a fresh clone takes longer than to import them.
"""

from __future__ import annotations

import compileall
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from _pytest.assertion import rewrite

ROOT = Path(__file__).resolve().parents[1]


def compile_test(path: Path) -> None:
    """Write the bytecode of a test module, as pytest's import hook would."""
    directory = rewrite.get_cache_dir(path)
    compiled = directory / f"{path.stem}{rewrite.PYC_TAIL}"
    if rewrite._read_pyc(path, compiled) is None and rewrite.try_makedirs(directory):
        stat, code = rewrite._rewrite_test(path, None)  # no configuration: its defaults
        rewrite._write_pyc(None, code, stat, compiled)


def main() -> None:
    """Compile the source, then the tests."""
    for source in ROOT.glob("packages/*/src"):
        compileall.compile_dir(source, quiet=1, workers=os.cpu_count() or 1)
    trees = (ROOT / "tests", *ROOT.glob("packages/*/tests"))
    found = [path for tree in trees for path in tree.rglob("*.py")]
    with ProcessPoolExecutor() as pool:
        list(pool.map(compile_test, found, chunksize=8))


if __name__ == "__main__":
    main()
