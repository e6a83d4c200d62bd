from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.client.config.kubeconfigs import write

from kubeloop.client.config.kubeconfig import load_file, load_files, parse_kubeconfig
from kubeloop.client.errors import ConfigError

FILE = Path("/home/me/.kube/config")


def fails(content: str | bytes) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_kubeconfig(content.encode() if isinstance(content, str) else content, FILE)
    message = str(caught.value)
    assert message.startswith(f"{FILE}: ")
    assert "sesame" not in message
    return message.removeprefix(f"{FILE}: ")


# One file


def test_an_empty_file_is_an_empty_kubeconfig():
    for content in (b"", b"\n# nothing\n", b"---\n", b"{}", b"null"):
        config = parse_kubeconfig(content, FILE)
        assert (config.current_context, config.contexts) == ("", {})


def test_what_tools_write_is_understood():
    config = parse_kubeconfig(
        b"""
apiVersion: v1
kind: Config
preferences: {colors: true}
extensions: null
current-context: dev
contexts:
- context: {cluster: c, user: u, namespace: team, extensions: [{name: x, extension: {a: 1}}]}
  name: dev
clusters:
- name: c
  cluster:
    server: https://h
    disable-compression: true
    extensions:
    - name: client.authentication.k8s.io/exec
      extension: {audience: here}
users:
- name: u
  user:
    token: "12"
    exec: {apiVersion: client.authentication.k8s.io/v1, command: login, args: null, env: null}
""",
        FILE,
    )
    assert config.current_context == "dev"
    assert config.contexts["dev"].value.namespace == "team"
    assert config.clusters["c"].value.extensions[0].extension == {"audience": "here"}
    user = config.users["u"]
    assert user.value.token == "12"
    assert user.value.exec is not None
    assert user.value.exec.args == ()
    assert str(user.location) == f"{FILE}: users[0].user"
    assert "12" not in repr(user.value)


def test_an_entry_without_content_is_an_empty_entry():
    config = parse_kubeconfig(
        b"users: [{name: a}, {name: b, user: null}, {name: c, user: {}}]", FILE
    )
    assert config.users["a"].value == config.users["b"].value == config.users["c"].value


def test_a_date_is_text_and_number_keys_are_text():
    config = parse_kubeconfig(
        b"current-context: 2020-01-01\nusers: [{name: u, user: {as-user-extra: {1: [x]}}}]\n2: 3",
        FILE,
    )
    assert config.current_context == "2020-01-01"
    assert config.users["u"].value.as_user_extra == {"1": ("x",)}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: b: c", "line 1, column 5: mapping values are not allowed"),
        ("users:\n- name: u\n  user: {token: sesame", "line 4, column 1: while parsing"),
        ("users: [sesame\n", "line "),
        ("\tusers: sesame", "line 1, column 1: "),
        ("a: *sesame", "line 1, column 4: found undefined alias"),
        ("a: !sesame", "line 1, column 4: could not determine"),
        ("a: !!python/object:os.system sesame", "line 1, column 4: could not determine"),
        ("a: !!int sesame", "a value does not fit the YAML tag"),
        ("a: !!bool sesame", "a value does not fit the YAML tag"),
        ("a: !!timestamp sesame", "a value does not fit the YAML tag"),
        ("a: &a [*a]", "nested too deeply, or an alias contains itself"),
        ("--- {}\n--- {}", "line 2, column 1: expected a single document"),
        (b"\x00sesame", "not YAML text"),
        (b"\xff\xff", "not YAML text"),
        ("[" * 2000 + "]" * 2000, ""),
        ("- a", "expected a mapping, got a list"),
        ("sesame", "expected a mapping, got a string"),
        ("current-context: 5", "current-context: expected a string, got a whole number; put it in"),
        ("users: {a: b}", "users: expected a list, got a mapping; check the indentation"),
        ("users: [sesame]", "users[0]: expected a mapping, got a string"),
        ("users: [{name: a}, {name: 3}]", "users[1].name: expected a string, got a whole number"),
        ("users: [{name: a, user: 3}]", "users[0].user: expected a mapping"),
        ("users: [{name: a, user: {token: 123}}]", "users[0].user.token: expected a string"),
        ("users: [{name: a, user: {as-groups: x}}]", "users[0].user.as-groups: expected a list"),
        (
            "users: [{}, {name: a}, {name: b, user: {exec: {command: [x]}}}]",
            "users[2].user.exec.command: expected a string, got a list",
        ),
        (
            "users: [{name: b, user: {exec: {env: [{name: A}, {name: B, value: 1}]}}}]",
            "users[0].user.exec.env[1].value: expected a string, got a whole number; put it in",
        ),
        (
            "clusters: [{name: c, cluster: {insecure-skip-tls-verify: 'yes'}}]",
            "clusters[0].cluster.insecure-skip-tls-verify: expected true or false, got a string",
        ),
        ("contexts: [{name: x}, {name: x}]", "contexts[1].name: 'x' occurs twice"),
        ("kind: Pod\napiVersion: v1", "kind 'Pod' is not a kubeconfig"),
        ("kind: Config\napiVersion: v2", "apiVersion 'v2'"),
    ],
)
def test_a_mistake_is_reported_with_its_location_and_without_secrets(content, message):
    assert message in fails(content)


def test_a_missing_a_forbidden_and_an_impossible_file_are_reported(tmp_path):
    with pytest.raises(ConfigError, match="no such file; correct the path"):
        load_file(tmp_path / "gone")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_file(tmp_path)
    with pytest.raises(ConfigError, match="cannot be read: embedded null"):
        load_file(tmp_path / "a\0b")


@pytest.fixture
def nobody():
    """Root may read everything: be somebody else for a while."""
    was = os.geteuid()
    if was == 0:
        os.seteuid(65534)
    yield
    os.seteuid(was)


def test_an_unreadable_file_is_reported(tmp_path, request):
    path = write(tmp_path / "config", {})
    path.chmod(0)
    request.getfixturevalue("nobody")
    with pytest.raises(ConfigError, match="Permission denied; check its owner and mode"):
        load_file(path)


def test_a_refused_read_is_reported(tmp_path, monkeypatch):
    def refuse(_path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(ConfigError, match="Permission denied; check its owner and mode"):
        load_file(tmp_path / "config")


def yaml_texts():
    scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    words = (
        "users user name clusters cluster contexts context exec env current-context token server"
        " as-groups extensions extension args"
    )
    keys = st.sampled_from(words.split()) | st.text(max_size=3)
    trees = st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    )
    return trees.map(json.dumps)


@given(st.text() | st.binary() | yaml_texts() | st.text("&*![]{}:-?|>%@ \n\"'ab1", max_size=40))
def test_any_content_is_a_kubeconfig_or_a_config_error(content):
    raw = content.encode("utf-8", "replace") if isinstance(content, str) else content
    complaint = None
    try:
        parse_kubeconfig(raw, FILE)
    except ConfigError as error:
        complaint = str(error)
    assert complaint is None or str(FILE) in complaint


# Several files


def entry(section, name, **content):
    return {"name": name, section: content}


def test_the_first_file_owns_a_name_whole(tmp_path):
    one = write(tmp_path / "1", {"users": [entry("user", "red", username="first")]})
    two = write(tmp_path / "2", {"users": [entry("user", "red", token="t"), entry("user", "blue")]})
    merged = load_files([one, two])
    assert merged.users["red"].value.username == "first"
    assert merged.users["red"].value.token == ""
    assert set(merged.users) == {"red", "blue"}
    assert merged.files == (one, two)


def test_the_first_current_context_that_is_set_wins(tmp_path):
    files = [
        write(tmp_path / "1", {"current-context": ""}),
        write(tmp_path / "2", {"current-context": "two"}),
        write(tmp_path / "3", {"current-context": "three"}),
    ]
    assert load_files(files).current_context == "two"


def test_missing_files_are_skipped_and_broken_ones_are_not(tmp_path):
    good = write(tmp_path / "good", {"current-context": "x"})
    assert load_files([tmp_path / "gone", good]).files == (good,)
    broken = write(tmp_path / "broken", "a: b: c")
    with pytest.raises(ConfigError, match="broken: line 1"):
        load_files([good, broken])


def test_relative_names_are_relative_to_the_file_that_holds_them(tmp_path, monkeypatch):
    write(tmp_path / "a" / "config", {"users": [entry("user", "u")]})
    write(tmp_path / "b" / "config", {"users": [entry("user", "v")]})
    monkeypatch.chdir(tmp_path)
    merged = load_files([Path("a/config"), Path("b/config")])
    assert merged.users["u"].location.resolve("x.crt") == tmp_path / "a" / "x.crt"
    assert merged.users["v"].location.resolve("sub/x.crt") == tmp_path / "b" / "sub" / "x.crt"
    assert merged.users["v"].location.resolve("/x.crt") == Path("/x.crt")


names = st.sampled_from("abcd")
sections = st.dictionaries(names, st.integers(0, 9), max_size=4)
documents = st.fixed_dictionaries(
    {"context": st.sampled_from(["", "a", "b"]), "users": sections, "clusters": sections}
    | {"contexts": sections}
)


def reference_merge(models):
    """Say it the naive way: go through the files backwards and let the earlier overwrite."""
    result = {"context": "", "users": {}, "clusters": {}, "contexts": {}}
    for model in reversed(models):
        for section in ("users", "clusters", "contexts"):
            result[section] |= model[section]
        result["context"] = model["context"] or result["context"]
    return result


@given(st.lists(documents | st.none(), max_size=4))
def test_merging_agrees_with_the_naive_reference(tmp_path_factory, models):
    directory = tmp_path_factory.mktemp("merge")
    for index, model in enumerate(models):
        if model is None:
            continue
        content = {
            "current-context": model["context"],
            "users": [entry("user", n, username=str(v)) for n, v in model["users"].items()],
            "clusters": [entry("cluster", n, server=str(v)) for n, v in model["clusters"].items()],
            "contexts": [
                entry("context", n, namespace=str(v)) for n, v in model["contexts"].items()
            ],
        }
        write(directory / str(index), content)
    merged = load_files([directory / str(index) for index in range(len(models))])
    wanted = reference_merge([model for model in models if model is not None])
    assert merged.current_context == wanted["context"]
    assert {n: int(e.value.username) for n, e in merged.users.items()} == wanted["users"]
    assert {n: int(e.value.server) for n, e in merged.clusters.items()} == wanted["clusters"]
    assert {n: int(e.value.namespace) for n, e in merged.contexts.items()} == wanted["contexts"]
