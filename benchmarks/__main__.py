"""Run the benchmarks."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.processes import ROOT, Cores
from benchmarks.report import Report
from benchmarks.suites import SUITES, Settings, load


def main() -> int:
    """Run the suites asked for, or all; exit status 1 where a goal is missed."""
    arguments = _parse()
    settings = Settings(quick=arguments.quick, cores=Cores.of_this_machine())
    report = Report()
    for name in arguments.names or SUITES:
        print(f"... {name}", file=sys.stderr, flush=True)
        report.figures += load(name)(settings)
    report.write(arguments.json)
    print(report.table())
    return 1 if any(figure.ok is False for figure in report.figures) else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(SUITES)}")
    parser.add_argument("--quick", action="store_true", help="one short round of each")
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "bench.json", metavar="PATH")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(SUITES):
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}; of: {', '.join(SUITES)}")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
