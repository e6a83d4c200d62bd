from __future__ import annotations

import string
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kubelet.builders import Objects, facts

from devkube.kubelet.environment import (
    ConfigurationError,
    command,
    environment,
    expand,
    read_field,
)
from devkube.kubelet.pod_types import ContainerSpec


def container(**fields: Any) -> ContainerSpec:
    return msgspec.convert({"name": "main", "image": "img", **fields}, ContainerSpec)


def variables(
    *env: dict[str, Any], objects: Objects | None = None, **fields: Any
) -> dict[str, str]:
    made = container(env=list(env), **fields)
    return environment(made, facts(labels={"app": "web"}), objects or Objects(), {"HOME": "/"})


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("$(A)-$(B)", "1-2"),
        ("$(NOPE)", "$(NOPE)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$A ${A} $(", "$A ${A} $("),
        ("$", "$"),
        ("a$$", "a$"),
    ],
)
def test_references_are_expanded(text, result):
    assert expand(text, {"A": "1", "B": "2"}) == result


@given(st.text(string.ascii_letters + " (){}.-", max_size=40))
def test_text_without_dollars_stays_unchanged(text):
    assert expand(text, {"a": "x"}) == text


@given(st.text(max_size=40))
def test_a_doubled_dollar_protects_anything(text):
    assert expand(text.replace("$", "$$"), {"A": "1"}) == text


def test_variables_may_name_earlier_ones_only():
    env = [
        {"name": "A", "value": "1"},
        {"name": "B", "value": "$(A)$(C)$(HOME)"},
        {"name": "C", "value": "3"},
    ]
    assert variables(*env) == {"HOME": "/", "A": "1", "B": "1$(C)/", "C": "3"}


def test_fields_of_the_pod_are_values():
    def field(path: str) -> dict[str, Any]:
        return {"name": "X", "valueFrom": {"fieldRef": {"fieldPath": path}}}

    for path, value in {
        "metadata.name": "web",
        "metadata.namespace": "default",
        "metadata.uid": "u1",
        "metadata.labels['app']": "web",
        "metadata.annotations['none']": "",
        "spec.nodeName": "n",
        "spec.serviceAccountName": "robot",
        "status.podIP": "127.20.0.7",
        "status.podIPs": "127.20.0.7",
        "status.hostIP": "127.0.0.1",
    }.items():
        assert variables(field(path))["X"] == value, path
    with pytest.raises(ConfigurationError, match=r"unsupported fieldPath: spec\.x"):
        variables(field("spec.x"))


def test_all_labels_are_lines_in_order():
    assert read_field(facts(labels={"b": 'q"', "a": "1"}), "metadata.labels") == 'a="1"\nb="q\\""'


def test_keys_of_config_maps_and_secrets_are_values():
    objects = Objects(cm={"k": b"v"}, s={"p": b"w"})
    env = [
        {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "k"}}},
        {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "p"}}},
        {"name": "C", "valueFrom": {"secretKeyRef": {"name": "s", "key": "q", "optional": True}}},
        {
            "name": "D",
            "valueFrom": {"configMapKeyRef": {"name": "x", "key": "q", "optional": True}},
        },
    ]
    assert variables(*env, objects=objects) == {"HOME": "/", "A": "v", "B": "w"}


def test_a_missing_key_or_object_is_named():
    missing_key = {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "z"}}}
    with pytest.raises(ConfigurationError, match="couldn't find key z in ConfigMap default/cm"):
        variables(missing_key, objects=Objects(cm={}))
    with pytest.raises(ConfigurationError, match='configmap "cm" not found'):
        variables(missing_key)


def test_whole_objects_become_variables_with_a_prefix_and_env_wins():
    sources = [
        {"prefix": "P_", "configMapRef": {"name": "cm"}},
        {"secretRef": {"name": "gone", "optional": True}},
    ]
    made = variables(
        {"name": "P_a", "value": "own"},
        objects=Objects(cm={"a": b"1", "b=c": b"2", "d": b"3"}),
        envFrom=sources,
    )
    assert made == {"HOME": "/", "P_a": "own", "P_d": "3"}


def test_commands_are_command_and_arguments_expanded():
    made = container(command=["run", "$(A)"], args=["--x=$(A)", "$$(A)"])
    assert command(made, {"A": "1"}) == ("run", "1", "--x=1", "$(A)")


def test_an_image_may_have_an_entrypoint_that_a_command_replaces():
    assert command(container(args=["x"]), {}, ("img-main",)) == ("img-main", "x")
    assert command(container(command=["own"]), {}, ("img-main",)) == ("own",)
    assert command(container(args=["prog", "x"]), {}) == ("prog", "x")


def test_a_container_without_a_command_is_an_error_with_a_remedy():
    with pytest.raises(ConfigurationError, match=r'image "img" is not pulled here.*--run'):
        command(container(), {})
