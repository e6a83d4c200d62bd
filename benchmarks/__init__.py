"""Measurements, each beside a reference in the same run where one exists.

`python -m benchmarks [NAME...] [--quick] [--json PATH]` prints a table and writes the figures.
A suite (benchmarks/suites) asks for runs and judges them; a runner (benchmarks/runners) is one
measured process, pinned to a core and always fresh; what it talks to runs in a process on another
core. Rounds alternate between the variants, so that a noisy minute hits all of them.
"""

import sys
from pathlib import Path

# Some benchmarks use what the tests of elasti use, such as an installation before an API server.
sys.path.append(str(Path(__file__).parent.parent / "packages" / "elasti"))
