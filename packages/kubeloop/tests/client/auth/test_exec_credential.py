from __future__ import annotations

import base64
import datetime as dt
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeloop.client.auth.exec_credential import ClusterInfo, parse, request
from kubeloop.client.errors import CredentialError

V1 = "client.authentication.k8s.io/v1"
NOW = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)


def answer(**status):
    return {"apiVersion": V1, "kind": "ExecCredential", "status": status}


def read(document, api_version=V1):
    raw = document if isinstance(document, bytes) else json.dumps(document).encode()
    return parse(raw, api_version=api_version, origin="cfg: exec (cmd)", now=NOW)


def test_a_token_is_read():
    credential = read(answer(token="t0k"))
    assert (credential.token, credential.pair, credential.expires) == ("t0k", None, None)
    assert "t0k" not in repr(credential)


def test_certificate_comes_with_key_and_may_come_with_token():
    credential = read(answer(token="t", clientCertificateData="CERT", clientKeyData="KEY"))
    assert credential.pair is not None
    assert (credential.token, credential.pair.certificate, credential.pair.key) == (
        "t",
        b"CERT",
        b"KEY",
    )
    assert credential.pair.key_origin == "cfg: exec (cmd): status.clientKeyData"


def test_the_expiry_is_a_time_with_a_zone():
    credential = read(answer(token="t", expirationTimestamp="2030-01-01T02:00:00+01:00"))
    assert credential.expires == NOW + dt.timedelta(hours=1)


def test_nulls_are_missing_fields():
    credential = read(
        answer(token="t", expirationTimestamp=None, clientCertificateData=None, clientKeyData=None)
    )
    assert credential.pair is None


def test_the_older_version_is_read_if_it_is_asked_for():
    beta = "client.authentication.k8s.io/v1beta1"
    assert read(answer(token="t") | {"apiVersion": beta}, api_version=beta).token == "t"


@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        (b"", "printed nothing"),
        (b" \n", "printed nothing"),
        (b"sesame: open", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b'{"token": "sesame"', "not JSON"),
        (b'"sesame"', "malformed: Expected `object`, got `str`"),
        (answer(token=5), "Expected `str | null`, got `int` - at `$.status.token`"),
        (answer(token="sesame", expirationTimestamp="soon"), "$.status.expirationTimestamp"),
        (answer(token="sesame", expirationTimestamp="2031-01-01T00:00:00"), "has no time zone"),
        (answer(token="sesame", expirationTimestamp="2029-12-31T23:59:59Z"), "expired at 2029-12"),
        (answer(token="sesame", expirationTimestamp="2030-01-01T00:00:00Z"), "expired at 2030-01"),
        (answer(), "neither a token nor"),
        (answer(token=""), "neither a token nor"),
        (answer(clientCertificateData="sesame"), "lacks clientKeyData"),
        (answer(clientKeyData="sesame"), "lacks clientCertificateData"),
        ({"apiVersion": V1, "kind": "ExecCredential"}, "no status"),
        (answer(token="sesame") | {"kind": "Secret"}, "kind 'Secret'"),
        (
            answer(token="sesame") | {"apiVersion": "client.authentication.k8s.io/v1beta1"},
            "apiVersion 'client.authentication.k8s.io/v1beta1'",
        ),
    ],
)
def test_a_bad_answer_is_reported_without_repeating_it(document, complaint):
    with pytest.raises(CredentialError) as caught:
        read(document)
    assert str(caught.value).startswith("cfg: exec (cmd): ")
    assert complaint in str(caught.value)
    assert "sesame" not in str(caught.value)


@given(
    st.binary()
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(["status", "apiVersion", "kind", "token", "expirationTimestamp"]),
                inner,
            )
        ),
    )
)
def test_any_output_is_a_credential_or_a_credential_error(output):
    try:
        credential, complaint = read(output), ""
    except CredentialError as error:
        credential, complaint = None, str(error)
    if credential is None:
        assert complaint.startswith("cfg: exec (cmd)")
    else:
        assert credential.token or credential.pair


def test_the_request_says_whether_it_is_interactive():
    assert json.loads(request(api_version=V1, interactive=True, cluster=None)) == {
        "apiVersion": V1,
        "kind": "ExecCredential",
        "spec": {"interactive": True},
    }


def test_the_question_describes_the_cluster():
    cluster = ClusterInfo(
        server="https://h",
        server_name="name",
        insecure=False,
        authority=b"PEM",
        proxy="http://p",
        config={"audience": "a"},
    )
    spec = json.loads(request(api_version=V1, interactive=False, cluster=cluster))["spec"]
    assert spec["cluster"] == {
        "server": "https://h",
        "tls-server-name": "name",
        "certificate-authority-data": base64.b64encode(b"PEM").decode(),
        "proxy-url": "http://p",
        "config": {"audience": "a"},
    }


def test_what_is_unset_is_left_out():
    cluster = ClusterInfo(
        server="https://h", server_name=None, insecure=True, authority=None, proxy=None
    )
    assert cluster.document() == {
        "server": "https://h",
        "insecure-skip-tls-verify": True,
        "config": None,
    }
