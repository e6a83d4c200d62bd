"""The graph of dependencies: which edges count, in both directions, and why others do not."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.operator.values import elastiservice

from elasti.api.types import DependencyRef
from elasti.operator.watch.directory import Directory
from kubeloop.controller.reconcile import Request


def directory_of(**edges: str) -> Directory:
    directory = Directory()
    for name, named in edges.items():
        put(directory, name, *named.split())
    return directory


def put(directory: Directory, name: str, *named: str) -> None:
    depends_on = tuple(map(DependencyRef, named))
    directory.put(elastiservice(name, depends_on=depends_on))


def one(name: str) -> Request:
    return Request("shop", name)


def names(requests: tuple[Request, ...]) -> list[str]:
    return [request.name for request in requests]


def test_edges_are_known_in_both_directions():
    graph = directory_of(web="db cache", worker="db", db="", cache="").graph
    assert names(graph.dependencies(one("web"))) == ["db", "cache"]
    assert names(graph.dependents(one("db"))) == ["web", "worker"]
    assert graph.dependencies(one("db")) == graph.dependents(one("web")) == ()


@pytest.mark.parametrize(
    ("edges", "of", "words"),
    [
        ({"web": "web"}, "web", "spec.dependsOn[0] names web, which is this ElastiService itself"),
        ({"web": "db"}, "web", "and there is no such ElastiService in namespace shop"),
        ({"web": "db", "db": "web"}, "db", "names web, which depends on this one in turn"),
        ({"web": "db", "db": "x", "x": "web"}, "x", "names web, which depends on this one in turn"),
    ],
)
def test_an_edge_that_cannot_be_followed_is_named_and_ignored(edges, of, words):
    graph = directory_of(**edges).graph
    [problem] = graph.problems(one(of))
    assert words in problem
    assert "; the entry is ignored" in problem
    assert graph.dependencies(one(of)) == ()


def test_a_cycle_costs_its_own_edges_only():
    graph = directory_of(web="db api", api="web db", db="").graph
    assert names(graph.dependencies(one("web"))) == ["db"]
    assert names(graph.dependencies(one("api"))) == ["db"]
    assert names(graph.dependents(one("db"))) == ["api", "web"]


def test_long_lists_and_deep_chains_are_cut():
    many = {f"d{index:02}": "" for index in range(33)}
    graph = directory_of(web=" ".join(many), **many).graph
    assert len(graph.dependencies(one("web"))) == 32
    assert "longer than 32" in next(graph.problems(one("web")))
    chain = {f"c{index}": f"c{index + 1}" for index in range(10)} | {"c10": ""}
    graph = directory_of(**chain).graph
    cut = [name for name in chain if list(graph.problems(one(name)))]
    assert cut == ["c1"]
    assert names(graph.dependencies(one("c2"))) == ["c3"]
    assert names(graph.dependencies(one("c0"))) == ["c1"]


def test_a_large_graph_is_worked_out_in_no_time():
    named = {
        f"n{index}": [f"n{(index + step) % 200}" for step in range(1, 33)] for index in range(200)
    }
    graph = directory_of(**{name: " ".join(found) for name, found in named.items()}).graph
    began = time.process_time()
    for name in named:
        assert graph.dependencies(one(name)) == graph.dependents(one(name)) == ()
        assert len(list(graph.problems(one(name)))) == 32
    assert time.process_time() - began < 0.1


def test_a_very_long_chain_is_cut_and_raises_nothing():
    chain = {f"c{index}": f"c{index + 1}" for index in range(1000)} | {"c1000": ""}
    graph = directory_of(**chain).graph
    cut = [name for name in chain if list(graph.problems(one(name)))]
    assert len(cut) == 1000 // 9
    assert names(graph.dependents(one("c1000"))) == ["c999"]


def test_a_change_in_one_namespace_does_not_touch_another():
    directory = directory_of(web="db", db="")
    found = directory.graph.dependencies(one("web"))
    directory.graph.put(Request("other", "web"), ("db",))
    assert directory.graph.dependencies(one("web")) is found


def test_what_comes_goes_or_changes_is_followed():
    directory = directory_of(web="db")
    graph = directory.graph
    assert graph.dependencies(one("web")) == ()
    put(directory, "db")
    assert names(graph.dependencies(one("web"))) == ["db"]
    assert names(graph.concerned(one("db"))) == ["web"]
    put(directory, "db", "web")
    assert graph.dependencies(one("web")) == graph.dependencies(one("db")) == ()
    put(directory, "db")
    directory.remove(one("db"))
    assert graph.dependencies(one("web")) == ()
    directory.remove(one("web"))
    assert graph.concerned(one("db")) == ()


@given(
    st.dictionaries(
        st.sampled_from("abcdefghij"), st.lists(st.sampled_from("abcdefghijz"), max_size=5)
    )
)
def test_what_is_followed_has_no_cycle_and_both_directions_agree(edges: dict[str, list[str]]):
    directory = directory_of(**{name: " ".join(named) for name, named in edges.items()})
    graph, order = directory.graph, dict.fromkeys(edges, 0)
    for _ in range(len(edges) + 1):
        for name in edges:
            below = [order[one.name] for one in graph.dependencies(one(name))]
            order[name] = max(below, default=-1) + 1
    for name, named in edges.items():
        for dependency in graph.dependencies(one(name)):
            assert order[name] > order[dependency.name]
            assert one(name) in graph.dependents(dependency)
        ignored = len(list(graph.problems(one(name))))
        assert len(graph.dependencies(one(name))) + ignored == len(set(named))


def test_no_graph_that_a_tenant_can_write_is_too_long_or_too_dense():
    # By path instead of by edge, this would take days; by recursion, it would be too deep.
    chain = {f"c{index}": f"c{index + 1}" for index in range(2000)}
    graph = directory_of(**chain, c2000="").graph
    assert names(graph.dependencies(one("c1999"))) == ["c2000"]
    assert sum(1 for name in chain if not graph.dependencies(one(name))) == 2000 // 9
    layers = [[f"l{level}-{index}" for index in range(32)] for level in range(9)]
    dense = {name: " ".join(below) for here, below in pairwise(layers) for name in here}
    graph = directory_of(**dense, **dict.fromkeys(layers[-1], "")).graph
    assert len(graph.dependencies(one("l0-0"))) == 32


def test_a_change_has_no_other_namespace_judged_again():
    directory = directory_of(web="db", db="")
    before = directory.graph.dependencies(one("web"))
    directory.graph.put(Request("other", "web"), ("db",))
    assert directory.graph.dependencies(one("web")) is before
    put(directory, "web", "db", "web")
    assert directory.graph.dependencies(one("web")) is not before
