"""What nodes are made of, as texts: nothing here needs a cluster, or root."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from hack.realcluster import config, network
from hack.realcluster.cgroups import CgroupsMissing, Group, Hierarchy, mount_script, parse
from hack.realcluster.node import own_library

V1 = """\
/dev/vda / ext4 rw 0 0
cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,relatime,cpu,cpuacct 0 0
cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0
cgroup /sys/fs/cgroup/devices cgroup rw,devices 0 0
cgroup /sys/fs/cgroup/freezer cgroup rw,freezer 0 0
cgroup /sys/fs/cgroup/blkio cgroup rw,blkio 0 0
cgroup /sys/fs/cgroup/pids cgroup rw,pids 0 0
cgroup /sys/fs/cgroup/perf cgroup rw,perf_event 0 0
cgroup /sys/fs/cgroup/systemd cgroup rw,xattr,name=systemd 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0
"""


@pytest.fixture
def node() -> config.NodeFiles:
    return config.NodeFiles(2, Path("/state/node-2"))


def test_the_hierarchies_that_a_node_needs_are_found() -> None:
    found = {hierarchy.option: str(hierarchy.path) for hierarchy in parse(V1)}
    assert found["cpu,cpuacct"] == "/sys/fs/cgroup/cpu,cpuacct"
    assert found["name=systemd"] == "/sys/fs/cgroup/systemd"
    assert "perf_event" not in found
    assert len(found) == 8


def test_a_machine_without_them_is_reported_in_a_sentence() -> None:
    with pytest.raises(CgroupsMissing, match="does not have blkio, cpu, cpuacct") as missing:
        parse("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n")
    assert "\n" not in str(missing.value)


def test_hierarchies_are_mounted_again_under_every_name_they_go_by() -> None:
    script = mount_script(
        [Hierarchy("cpu,cpuacct", Path("/x")), Hierarchy("name=systemd", Path("/y"))]
    ).splitlines()
    assert "mount -t cgroup -o cpu,cpuacct cgroup /sys/fs/cgroup/cpu,cpuacct" in script
    assert "ln -s cpu,cpuacct /sys/fs/cgroup/cpuacct" in script
    assert "mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd" in script


def test_clusters_of_different_directories_have_different_cgroups(tmp_path: Path) -> None:
    assert Group.of(tmp_path / "a") == Group.of(tmp_path / "b" / ".." / "a")
    assert Group.of(tmp_path / "a") != Group.of(tmp_path / "b")


def test_containerd_writes_into_the_nodes_own_places_only(node: config.NodeFiles) -> None:
    settings = tomllib.loads(config.containerd(node, runc="/usr/sbin/runc"))
    assert settings["root"] == "/var/lib/containerd"
    assert settings["plugins"]["io.containerd.internal.v1.opt"]["path"] == "/var/lib/opt"
    runtime = settings["plugins"]["io.containerd.cri.v1.runtime"]
    assert runtime["cni"]["conf_dir"] == "/state/node-2/net.d"


def test_pods_of_a_node_have_addresses_that_the_others_have_a_route_to(
    node: config.NodeFiles,
) -> None:
    bridge = json.loads(config.pod_network(node))["plugins"][0]
    (((subnet,),),) = [bridge["ipam"]["ranges"]]
    route = f"ip route add {subnet['subnet']} via {network.node_address(2)}"
    assert route in network.node_script(1, 2)
    assert route in network.wire_script(2)
    assert route not in network.node_script(2, 2)


def test_the_kubelet_finds_its_cgroup_and_the_clusters_dns(node: config.NodeFiles) -> None:
    serving = Path("/crt"), Path("/key")
    settings = json.loads(
        config.kubelet(node, cgroup="/elasti-x/node-2", authority=Path("/ca"), serving=serving)
    )
    assert settings["cgroupRoot"] == "/elasti-x/node-2"
    assert settings["clusterDNS"] == [network.DNS_ADDRESS]
    assert settings["authentication"]["x509"]["clientCAFile"] == "/ca"


def test_what_a_node_needs_below_var_lib_stays_visible() -> None:
    script = own_library(Path("/state/lib"), [Path("/var/lib/ci/work"), Path("/root")]).splitlines()
    over = script.index("mount --bind /state/lib /var/lib")
    assert script.index("mount --rbind /run/lib/ci /var/lib/ci") > over
    assert sum("rbind" in line for line in script) == 2
