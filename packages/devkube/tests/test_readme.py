"""The README is true: its controller and its test are run as they are printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_the_readme_s_test_of_a_controller_passes(tmp_path: Path) -> None:
    controller, test = re.findall(
        r"^```python.*?\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL
    )
    (tmp_path / "hello.py").write_text(controller)
    (tmp_path / "test_hello.py").write_text(test)
    body = test[test.index("async def") :].strip().splitlines()
    assert len(body) <= 10
    command = [sys.executable, "-m", "pytest", "-q", "-o", "asyncio_mode=auto", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
