"""The dev cluster is an extra: without it everything works but `elasti dev` and `elasti demo`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from elasti.cli.main import main

ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize("call", [["dev"], ["dev", "--nodes", "2"], ["demo"], ["demo", "--keep"]])
def test_one_sentence_says_what_to_install(call: list[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "devkube", None)
    result = CliRunner().invoke(main, call)
    assert result.exit_code == 1
    assert result.stderr == (
        f"Error: `elasti {call[0]}` needs the dev cluster, which is not installed:"
        " pip install 'elasti-operator[dev]'\n"
    )


def test_every_module_of_elasti_is_importable_without_it():
    code = (
        "import importlib, pkgutil, sys\n"
        "sys.modules['devkube'] = None\n"
        "import elasti\n"
        "for found in pkgutil.walk_packages(elasti.__path__, 'elasti.'):\n"
        "    if not found.name.endswith('__main__'): importlib.import_module(found.name)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_nothing_suggests_the_distribution_of_a_stranger():
    """`elasti` on the package index is not ours."""
    pages = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("packages/*/README.md")]
    for path in (*pages, *ROOT.glob("packages/*/src/**/*.py")):
        assert not re.search(r"pip install '?elasti(?!-operator)\b", path.read_text()), path
