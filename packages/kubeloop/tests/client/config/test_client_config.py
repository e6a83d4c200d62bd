from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tests.certs import make_authority
from tests.client.config.kubeconfigs import document, write

from kubeloop.client.config.client_config import ClientConfig, ClientSettings
from kubeloop.client.config.endpoint import Endpoint
from kubeloop.client.errors import ConfigError


@pytest.fixture
def pod(tmp_path):
    """Settings as in a pod, with a ServiceAccount."""
    directory = tmp_path / "serviceaccount"
    directory.mkdir()
    (directory / "token").write_text("pod-token")
    (directory / "ca.crt").write_bytes(make_authority().pem)
    (directory / "namespace").write_text("pod-namespace")
    return {
        "service_host": "10.0.0.1",
        "service_port": "443",
        "serviceaccount_dir": directory,
    }


def test_the_context_decides_cluster_user_and_namespace(tmp_path):
    content = document(namespace="team", cluster={"proxy-url": "http://p:1"})
    path = write(tmp_path / "config", content)
    config = ClientConfig.from_kubeconfig(path, settings=ClientSettings())
    assert config.endpoint == Endpoint(
        scheme="https", host="127.0.0.1", port=6443, proxy="http://p:1"
    )
    assert config.namespace == "team"
    assert config.impersonate is None
    assert config.source == f"kubeconfig {path}, context here"


def test_the_namespace_is_default_if_none_is_named(tmp_path):
    path = write(tmp_path / "config", document())
    assert ClientConfig.from_kubeconfig(str(path), settings=ClientSettings()).namespace == "default"


async def test_another_context_can_be_asked_for(tmp_path):
    content = document()
    content["contexts"].append({"name": "there", "context": {"cluster": "c2", "user": "u2"}})
    content["clusters"].append({"name": "c2", "cluster": {"server": "https://two"}})
    content["users"].append({"name": "u2", "user": {"token": "two"}})
    path = write(tmp_path / "config", content)
    config = ClientConfig.from_kubeconfig(path, context="there", settings=ClientSettings())
    assert config.endpoint.host == "two"
    assert await config.credentials.headers() == {"Authorization": "Bearer two"}


def test_a_context_without_a_user_is_anonymous(tmp_path):
    content = document()
    del content["contexts"][0]["context"]["user"]
    path = write(tmp_path / "config", content)
    assert ClientConfig.from_kubeconfig(path, settings=ClientSettings()).source


@pytest.mark.parametrize(
    ("change", "asked", "message"),
    [
        (
            {"current-context": "gone"},
            None,
            "current-context: there is no context 'gone'; known contexts:",
        ),
        ({}, "gone", ": there is no context 'gone'; known contexts: 'here'"),
        ({"current-context": ""}, None, "no current-context is set; choose one of 'here'"),
        ({"current-context": "", "contexts": []}, None, "has no contexts; is it a kubeconfig"),
        ({"contexts": []}, None, "there is no context 'here'; known contexts: none"),
        (
            {"clusters": []},
            None,
            "contexts[0].context.cluster: there is no cluster 'c'; known clusters:",
        ),
        ({"users": []}, None, "contexts[0].context.user: there is no user 'u'; known users: none"),
        (
            {"contexts": [{"name": "here", "context": {"user": "u"}}]},
            None,
            "contexts[0].context.cluster: is empty; known clusters: 'c'",
        ),
    ],
)
def test_name_that_leads_nowhere_is_reported_with_those_that_exist(
    tmp_path, change, asked, message
):
    path = write(tmp_path / "config", document() | change)
    with pytest.raises(ConfigError) as caught:
        ClientConfig.from_kubeconfig(path, context=asked, settings=ClientSettings())
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)


def test_several_files_are_merged_and_all_named(tmp_path):
    whole = document(namespace="team")
    one = write(tmp_path / "one", {"current-context": "here", "contexts": whole.pop("contexts")})
    two = write(tmp_path / "two", whole)
    listed = os.pathsep.join([str(one), str(tmp_path / "gone"), str(two)])
    settings = ClientSettings(kubeconfig=listed)
    assert ClientConfig.from_kubeconfig(settings=settings).source == (
        f"kubeconfig {one}:{two}, context here"
    )
    again = ClientConfig.from_kubeconfig([one, str(two)], settings=ClientSettings())
    assert again.namespace == "team"


def test_the_file_in_the_home_is_the_default(tmp_path):
    write(tmp_path / ".kube" / "config", document(namespace="home"))
    assert ClientConfig.from_kubeconfig(settings=ClientSettings(home=tmp_path)).namespace == "home"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "no configuration: neither KUBECONFIG nor HOME is set; set KUBECONFIG"),
        ({"kubeconfig": "/gone/x"}, "no configuration: /gone/x does not exist"),
        ({"kubeconfig": "/gone/x:/gone/y"}, "none of /gone/x, /gone/y exists"),
    ],
)
def test_no_configuration_at_all_says_where_it_was_sought(settings, message):
    with pytest.raises(ConfigError, match=message):
        ClientConfig.from_env(settings=ClientSettings(**settings))


def test_one_given_file_must_exist(tmp_path):
    with pytest.raises(ConfigError, match="gone: no such file"):
        ClientConfig.from_kubeconfig(tmp_path / "gone", settings=ClientSettings())


def test_a_pods_own_account_goes_before_a_kubeconfig(pod, tmp_path):
    path = write(tmp_path / "config", document(namespace="file"))
    settings = ClientSettings(kubeconfig=str(path), **pod)
    assert ClientConfig.from_env(settings=settings).source == "in-cluster"


def test_asking_for_a_context_means_the_kubeconfig(pod, tmp_path):
    path = write(tmp_path / "config", document(namespace="file"))
    settings = ClientSettings(kubeconfig=str(path), **pod)
    assert ClientConfig.from_env(context="here", settings=settings).namespace == "file"


@pytest.mark.parametrize("missing", ["service_host", "service_port", "token"])
def test_without_an_address_or_a_token_it_is_not_a_pod(pod, tmp_path, missing):
    if missing == "token":
        (pod["serviceaccount_dir"] / "token").unlink()
    else:
        pod[missing] = ""
    path = write(tmp_path / "config", document(namespace="file"))
    settings = ClientSettings(kubeconfig=str(path), **pod)
    assert ClientConfig.from_env(settings=settings).namespace == "file"


def test_the_environment_is_read_where_no_settings_are_given(tmp_path, monkeypatch):
    path = write(tmp_path / "config", document(namespace="env"))
    monkeypatch.setenv("KUBECONFIG", str(path))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert ClientConfig.from_env().namespace == "env"


def test_configuration_in_a_cluster_imports_nothing_heavy():
    program = (
        "import sys, kubeloop.client.config.client_config;"
        "print([m for m in ('yaml', 'aiohttp', 'cryptography', 'click') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
