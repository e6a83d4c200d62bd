"""User entries: which of their many ways to authenticate wins, and what is wrong with the rest."""

from __future__ import annotations

import json
import os
import ssl
import sys

import pytest
from tests.certs import make_authority
from tests.client.config.kubeconfigs import b64, document, write

from kubeloop.client.auth.identity import Impersonation
from kubeloop.client.config.client_config import ClientConfig, ClientSettings
from kubeloop.client.errors import ConfigError, CredentialError

V1 = "client.authentication.k8s.io/v1"
BETA = "client.authentication.k8s.io/v1beta1"


@pytest.fixture(scope="module")
def authority():
    return make_authority()


@pytest.fixture
def load(tmp_path):
    """Load a kubeconfig with the given user and cluster."""

    def run(user=None, cluster=None, **fields):
        path = write(tmp_path / "config", document(user=user, cluster=cluster))
        settings = ClientSettings(environ={"PATH": os.environ["PATH"]}, **fields)
        return ClientConfig.from_kubeconfig(path, settings=settings)

    return run


@pytest.fixture
def fails(load, tmp_path):
    """Load one that cannot be used; return what is said after the file's name."""

    def run(user=None, cluster=None, kind=ConfigError):
        with pytest.raises(kind) as caught:
            load(user, cluster)
        message = str(caught.value)
        assert message.startswith(f"{tmp_path}/config: ")
        assert "sesame" not in message
        return message.removeprefix(f"{tmp_path}/config: ")

    return run


async def header(config):
    return (await config.credentials.headers()).get("Authorization")


def exec_user(**fields):
    return {"exec": {"apiVersion": V1, "command": "true", "interactiveMode": "Never"} | fields}


# Tokens and passwords


async def test_a_token_is_sent(load):
    assert await header(load({"token": "abc"})) == "Bearer abc"


async def test_a_token_file_goes_before_a_token_and_is_followed(load, tmp_path):
    (tmp_path / "tok").write_text("file1\n")
    config = load({"token": "inline", "tokenFile": "tok"})
    assert await header(config) == "Bearer file1"
    (tmp_path / "tok").write_text("file22\n")
    assert await header(config) == "Bearer file22"


async def test_a_token_serves_while_its_file_is_missing(load):
    assert await header(load({"token": "inline", "tokenFile": "gone"})) == "Bearer inline"


def test_a_missing_token_file_alone_is_an_error_at_once(fails, tmp_path):
    message = fails({"tokenFile": "gone"}, kind=CredentialError)
    assert message.startswith(f"users[0].user.tokenFile: cannot read {tmp_path}/gone: no such file")


def test_a_token_that_no_header_can_carry_is_an_error(fails):
    assert "users[0].user.token: the token" in fails({"token": "se\nsame sesame"})


async def test_a_password_is_sent(load):
    assert await header(load({"username": "me", "password": "pw"})) == "Basic bWU6cHc="


async def test_a_password_without_a_name_is_ignored_and_reported(load, caplog):
    assert await header(load({"password": "sesame"})) is None
    assert "users[0].user.password is ignored" in caplog.text
    assert "sesame" not in caplog.text


def test_two_ways_to_authenticate_are_an_error(fails):
    message = fails({"username": "me", "password": "sesame", "token": "sesame"})
    assert "both a token and a username" in message


async def test_an_empty_user_is_anonymous_over_tls(load):
    config = load({})
    assert await header(config) is None
    assert await config.credentials.ssl_context() is not None


async def test_nothing_secret_is_read_or_sent_over_plain_http(load, caplog):
    config = load(
        {"token": "sesame", "client-certificate": "gone", "as": "jane"},
        {"server": "http://127.0.0.1:8080", "certificate-authority": "gone"},
    )
    assert await header(config) is None
    assert await config.credentials.ssl_context() is None
    assert config.impersonate == Impersonation(user="jane")
    assert "is not https" in caplog.text
    assert "sesame" not in caplog.text


def test_a_removed_auth_provider_names_the_remedy(fails):
    message = fails({"auth-provider": {"name": "gcp", "config": {"access-token": "sesame"}}})
    assert message.startswith("users[0].user.auth-provider: the provider 'gcp' was removed")
    assert "gke-gcloud-auth-plugin" in message


# Certificates


async def test_inline_certificates_are_used(load, authority):
    jane = authority.client("jane")
    config = load(
        {"client-certificate-data": b64(jane.certificate), "client-key-data": b64(jane.key)},
        {"certificate-authority-data": b64(authority.pem)},
    )
    context = await config.credentials.ssl_context()
    assert context is not None
    assert len(context.get_ca_certs()) == 1
    assert await config.credentials.ssl_context() is context


async def test_certificates_in_files_beside_the_kubeconfig_are_used_and_followed(
    load, authority, tmp_path
):
    certificate, key = authority.client("jane").write(tmp_path, "jane")
    (tmp_path / "ca.crt").write_bytes(authority.pem)
    config = load(
        {"client-certificate": "jane.crt", "client-key": "./jane.key", "token": "t"},
        {"certificate-authority": "ca.crt"},
    )
    first = await config.credentials.ssl_context()
    assert await header(config) == "Bearer t"
    joe = authority.client("joe")
    certificate.write_bytes(joe.certificate)
    assert await config.credentials.ssl_context() is first
    key.write_bytes(joe.key)
    assert await config.credentials.ssl_context() is not first


async def test_data_goes_before_a_file_which_is_not_even_read(load, authority):
    jane = authority.client("jane")
    config = load(
        {
            "client-certificate": "gone",
            "client-certificate-data": b64(jane.certificate),
            "client-key": "gone",
            "client-key-data": b64(jane.key),
        },
        {"certificate-authority": "gone", "certificate-authority-data": b64(authority.pem)},
    )
    assert await config.credentials.ssl_context() is not None


async def test_line_breaks_in_base64_mean_nothing(load, authority):
    packed = b64(authority.pem)
    config = load({}, {"certificate-authority-data": f"{packed[:40]}\n  {packed[40:]}\n"})
    context = await config.credentials.ssl_context()
    assert context.get_ca_certs(binary_form=True) == [
        ssl.PEM_cert_to_DER_cert(authority.pem.decode())
    ]


def test_a_missing_key_is_reported(fails, authority):
    message = fails({"client-certificate-data": b64(authority.client().certificate)})
    assert message.startswith("users[0].user.client-key: is missing")


async def test_a_key_alone_is_ignored_as_kubectl_does(load):
    config = load({"client-key-data": "sesame"})
    assert await config.credentials.ssl_context() is not None
    assert await header(config) is None


@pytest.mark.parametrize(
    ("user", "message"),
    [
        ({"client-certificate-data": "%%%"}, "client-certificate-data: is not base64"),
        ({"client-certificate-data": "abc"}, "client-certificate-data: is not base64"),
        (
            {"client-certificate-data": "-----BEGIN CERTIFICATE-----"},
            "client-certificate-data: is not base64; it is PEM itself: encode it",
        ),
        ({"client-certificate-data": "é"}, "client-certificate-data: is not base64"),
        ({"client-certificate": "gone"}, "client-certificate: cannot read "),
        ({"client-key-data": "%%%"}, "client-key-data: is not base64"),
        ({"client-key": "gone", "client-key-data": ""}, "client-key: cannot read "),
        ({"client-key-data": b64(b"sesame")}, "client-key-data: contains no PEM private key"),
        ({"client-certificate-data": b64(b"sesame")}, "-data: contains no PEM certificate"),
    ],
)
def test_bad_certificate_material_is_reported_with_its_field(fails, authority, user, message):
    jane = authority.client("jane")
    good = {"client-certificate-data": b64(jane.certificate), "client-key-data": b64(jane.key)}
    if "client-certificate" in user:
        del good["client-certificate-data"]
    assert message in fails(good | user)
    assert fails(good | user).startswith("users[0].user.client-")


def test_a_key_of_another_certificate_is_reported_with_both_fields(fails, authority):
    message = fails(
        {
            "client-certificate-data": b64(authority.client("jane").certificate),
            "client-key-data": b64(authority.client("joe").key),
        },
        kind=CredentialError,
    )
    assert message.startswith("users[0].user.client-key-data: the key does not match")


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        ({"server": ""}, "clusters[0].cluster.server: is empty"),
        ({"server": "10.0.0.1"}, "clusters[0].cluster.server: server URL '10.0.0.1': it has no"),
        ({"proxy-url": "socks5://p:1"}, "clusters[0].cluster.proxy-url: proxy URL socks5://p:1"),
        ({"certificate-authority": "gone"}, "clusters[0].cluster.certificate-authority: cannot"),
        ({"certificate-authority-data": "%"}, "certificate-authority-data: is not base64"),
        ({"certificate-authority-data": b64(b"x")}, "-authority-data: contains no PEM certificate"),
        (
            {"insecure-skip-tls-verify": True, "certificate-authority": "ca.crt"},
            "insecure-skip-tls-verify exclude each other",
        ),
    ],
)
def test_a_bad_cluster_is_reported_with_its_field(fails, cluster, message):
    assert message in fails({}, cluster)


# Impersonation


def test_impersonation_is_read_whole(load):
    config = load(
        {"as": "jane", "as-uid": "7", "as-groups": ["a", "b"], "as-user-extra": {"k": ["v"]}}
    )
    assert config.impersonate == Impersonation(
        user="jane", uid="7", groups=("a", "b"), extra={"k": ("v",)}
    )


@pytest.mark.parametrize(
    "user", [{"as-groups": ["g"]}, {"as-uid": "7"}, {"as-user-extra": {"k": ["v"]}}]
)
def test_impersonating_without_a_user_is_an_error(fails, user):
    assert fails(user).startswith("users[0].user.as: is empty, but as-uid")


@pytest.mark.parametrize(
    "user", [{"as": "a\nb"}, {"as": "a", "as-groups": ["x\r"]}, {"as": "a", "as-uid": "\0"}]
)
def test_an_impersonated_name_cannot_break_out_of_its_header(fails, user):
    assert "contains a control character" in fails(user)


# Plugins


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"command": ""}, "command: is empty"),
        ({"command": None}, "command: is empty"),
        ({"apiVersion": None}, "apiVersion: '' is not supported; use client.auth"),
        ({"apiVersion": "v7"}, "apiVersion: 'v7' is not supported"),
        (
            {"apiVersion": "client.authentication.k8s.io/v1alpha1"},
            "apiVersion: 'client.authentication.k8s.io/v1alpha1' is no longer supported",
        ),
        (
            {"interactiveMode": None},
            "interactiveMode: is missing; choose one of Never, IfAvailable, Always",
        ),
        ({"interactiveMode": "Perhaps"}, "interactiveMode: 'Perhaps'"),
        ({"env": [{"name": "A"}, {"value": "sesame"}]}, "env[1].name: '' cannot be"),
        ({"env": [{"name": "A=B"}]}, "env[0].name: 'A=B' cannot be"),
    ],
)
def test_a_bad_plugin_entry_is_reported_with_its_field(fails, fields, message):
    assert fails(exec_user(**fields)).startswith(f"users[0].user.exec.{message}")


def test_only_the_newer_version_needs_an_interactive_mode(load, fails):
    assert load(exec_user(apiVersion=BETA, interactiveMode=None)).credentials is not None
    assert "interactiveMode" in fails(exec_user(apiVersion=V1, interactiveMode=None))


PLUGIN = """#!{python}
import json, os, sys
question = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
with open({log!r}, "a") as log:
    log.write(json.dumps([sys.argv[1:], os.environ.get("WHO"), question]) + "\\n")
with open({answer!r}) as answer:
    status = json.load(answer)
print(json.dumps({{"apiVersion": question["apiVersion"], "kind": "ExecCredential", "status": status}}))
"""


@pytest.fixture
def plugin(tmp_path):
    """A plugin beside the kubeconfig that prints the status in a file and logs its runs."""
    path, log, answer = tmp_path / "bin" / "login", tmp_path / "log", tmp_path / "answer"
    write(path, PLUGIN.format(python=sys.executable, log=str(log), answer=str(answer)))
    path.chmod(0o755)

    class Plugin:
        def answers(self, **status):
            answer.write_text(json.dumps(status))

        def runs(self):
            return (
                [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
            )

    return Plugin()


async def test_plugin_beside_kubeconfig_is_run_when_it_is_needed(load, plugin, authority):
    plugin.answers(token="from-plugin")
    config = load(
        exec_user(
            command="./bin/login",
            args=["--x"],
            env=[{"name": "WHO", "value": "me"}],
            provideClusterInfo=True,
        ),
        {
            "certificate-authority-data": b64(authority.pem),
            "tls-server-name": "name",
            "extensions": [
                {"name": "other", "extension": 1},
                {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "a"}},
            ],
        },
    )
    assert plugin.runs() == []
    assert await header(config) == "Bearer from-plugin"
    assert await header(config) == "Bearer from-plugin"
    [[args, who, question]] = plugin.runs()
    assert (args, who) == (["--x"], "me")
    assert question["spec"] == {
        "interactive": False,
        "cluster": {
            "server": "https://127.0.0.1:6443",
            "tls-server-name": "name",
            "certificate-authority-data": b64(authority.pem),
            "config": {"audience": "a"},
        },
    }


async def test_cluster_is_kept_from_plugin_that_does_not_ask(load, plugin):
    plugin.answers(token="t")
    await header(load(exec_user(command="./bin/login")))
    [[_, _, question]] = plugin.runs()
    assert question["spec"] == {"interactive": False}


async def test_plugins_certificate_makes_context_and_new_one_makes_another(load, plugin, authority):
    def give(issued):
        plugin.answers(
            clientCertificateData=issued.certificate.decode(), clientKeyData=issued.key.decode()
        )

    give(authority.client("jane"))
    config = load(exec_user(command="./bin/login"))
    first = await config.credentials.ssl_context()
    assert await config.credentials.headers() == {}
    assert await config.credentials.ssl_context() is first
    give(authority.client("joe"))
    config.credentials.invalidate(await config.credentials.headers())
    assert await config.credentials.ssl_context() is not first
    assert len(plugin.runs()) == 2


async def test_a_plugins_certificate_with_a_foreign_key_is_reported(load, plugin, authority):
    plugin.answers(
        clientCertificateData=authority.client("jane").certificate.decode(),
        clientKeyData=authority.client("joe").key.decode(),
    )
    config = load(exec_user(command="./bin/login"))
    with pytest.raises(CredentialError, match=r"users\[0\].user.exec .*does not match"):
        await config.credentials.ssl_context()


@pytest.mark.parametrize("own", ["token", "basic", "certificate"])
async def test_plugin_is_not_run_where_user_has_credentials_of_own(load, plugin, authority, own):
    jane = authority.client("jane")
    user = {
        "token": {"token": "t"},
        "basic": {"username": "u", "password": "p"},
        "certificate": {
            "client-certificate-data": b64(jane.certificate),
            "client-key-data": b64(jane.key),
        },
    }[own]
    config = load(user | exec_user(command="./bin/login"))
    await config.credentials.headers()
    await config.credentials.ssl_context()
    assert plugin.runs() == []


def test_credentials_show_their_kind_and_nothing_else(load):
    assert repr(load({"token": "sesame"}).credentials) == (
        "ComposedCredentials(FixedHeaders, NoCertificate)"
    )
    assert repr(load(exec_user()).credentials) == "ComposedCredentials(PluginIdentity)"
    assert "sesame" not in repr(load({"token": "sesame"}))
