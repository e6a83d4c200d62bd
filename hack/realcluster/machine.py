"""Whether this machine can hold a real cluster, in one sentence where it cannot."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hack.realcluster import cgroups, images
from hack.realcluster.programs import Programs, ProgramsMissing

if TYPE_CHECKING:
    from collections.abc import Mapping

BRIDGE = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")


class Unsuitable(Exception):
    """A cluster cannot be here; the text, one sentence, says what is missing."""


def check(env: Mapping[str, str]) -> None:
    """Raise Unsuitable unless a cluster can be started now."""
    check_machine()
    try:
        Programs.locate(env)
        images.ready(env)
    except ProgramsMissing as error:
        raise Unsuitable(str(error)) from error


def check_machine() -> None:
    """Raise Unsuitable unless this is a Linux that lets us have nodes."""
    if sys.platform != "linux":
        raise Unsuitable(f"a real cluster needs Linux, and this is {sys.platform}")
    if os.geteuid() != 0:
        raise Unsuitable("a real cluster needs root: kubelets mount file systems and make cgroups")
    if not BRIDGE.exists():
        raise Unsuitable(f"{BRIDGE} is not there: modprobe br_netfilter")
    try:
        found = cgroups.hierarchies()
    except cgroups.CgroupsMissing as error:
        raise Unsuitable(str(error)) from error
    for hierarchy in found:
        if not os.access(hierarchy.path, os.W_OK):
            raise Unsuitable(f"{hierarchy.path} is read-only: a real cluster makes cgroups there")
