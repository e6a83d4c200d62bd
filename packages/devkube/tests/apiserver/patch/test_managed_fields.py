"""Field sets and the walks over typed values, with properties."""

from __future__ import annotations

import copy

from hypothesis import given
from hypothesis import strategies as st

from devkube.apiserver.patch.managed_fields import FieldSet, show_path
from devkube.apiserver.patch.structured_merge import compare, field_set, merge, remove
from devkube.apiserver.schema.types import BuiltinTypes

TYPES = BuiltinTypes()
POD = TYPES.type("io.k8s.api.core.v1.PodSpec")

elements = st.sampled_from(["f:a", "f:b", 'k:{"name":"x"}', 'v:"y"'])
paths = st.lists(elements, min_size=1, max_size=3).map(tuple)
sets = st.lists(paths, max_size=8).map(lambda found: FieldSet.of(*found))


def as_paths(found: FieldSet) -> set[tuple[str, ...]]:
    return set(found.paths())


@given(sets)
def test_a_set_is_read_back_as_written(found):
    assert FieldSet.read(found.write()) == found


@given(sets, sets)
def test_set_operations_are_those_of_sets(left, right):
    assert as_paths(left.union(right)) == as_paths(left) | as_paths(right)
    assert as_paths(left.intersection(right)) == as_paths(left) & as_paths(right)
    assert as_paths(left.difference(right)) == as_paths(left) - as_paths(right)


@given(sets, sets)
def test_without_drops_members_and_all_below_them(left, right):
    gone = as_paths(right)
    expected = {path for path in as_paths(left) if not any(path[: len(cut)] == cut for cut in gone)}
    assert as_paths(left.without(right)) == expected


def test_paths_are_shown_as_people_write_them():
    path = ("f:spec", "f:containers", 'k:{"name":"web"}', "f:args", 'v:"x"', "i:3")
    assert show_path(path) == '.spec.containers[name="web"].args[="x"][3]'


env = st.dictionaries(st.sampled_from("ABC"), st.sampled_from("123"), max_size=3).map(
    lambda found: [{"name": name, "value": value} for name, value in found.items()]
)
container = st.fixed_dictionaries(
    {"image": st.sampled_from(["i1", "i2"])},
    optional={"env": env, "command": st.lists(st.sampled_from("xy"), max_size=2)},
)
specs = st.fixed_dictionaries(
    {},
    optional={
        "containers": st.dictionaries(st.sampled_from(["c1", "c2"]), container, max_size=2).map(
            lambda found: [{"name": name, **body} for name, body in found.items()]
        ),
        "nodeSelector": st.dictionaries(st.sampled_from("kl"), st.sampled_from("vw"), max_size=2),
        "hostname": st.sampled_from(["h1", "h2"]),
    },
)


@given(specs, specs)
def test_merging_changes_neither_side_and_contains_the_configuration(live, config):
    before = copy.deepcopy((live, config))
    merged = merge(live, config, POD)
    assert (live, config) == before
    assert as_paths(field_set(config, POD)) <= as_paths(field_set(merged, POD))
    assert merge(merged, config, POD) == merged


@given(specs, specs)
def test_a_comparison_is_empty_exactly_for_equals(old, new):
    change = compare(old, new, POD)
    same = change.added.is_empty and change.removed.is_empty and change.modified.is_empty
    if old == new:
        assert same
    back = compare(new, old, POD)
    assert back.added == change.removed
    assert back.modified == change.modified


@given(specs)
def test_removing_everything_leaves_nothing(spec):
    paths_of = field_set(spec, POD)
    left = remove(spec, compare({}, spec, POD).added.union(paths_of), POD)
    assert not left
