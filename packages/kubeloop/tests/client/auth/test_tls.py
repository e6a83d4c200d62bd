"""TLS against a real server on the loopback interface."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from tests.certs import Issued, key_pem, make_authority, server_context

from kubeloop.client.auth import tls as certificates
from kubeloop.client.auth.tls import ClientKeyPair, PemSource, TlsContexts
from kubeloop.client.errors import ConfigError, CredentialError


@pytest.fixture(scope="module")
def authority():
    return make_authority()


@pytest.fixture(scope="module")
def client(authority):
    return authority.client("jane", ("dev",))


def pair(issued: Issued) -> ClientKeyPair:
    return ClientKeyPair(
        certificate=issued.certificate,
        key=issued.key,
        certificate_origin="cfg: client-certificate-data",
        key_origin="cfg: client-key-data",
    )


def inline(pem: bytes, origin="cfg: certificate-authority-data") -> PemSource:
    return PemSource(origin=origin, data=pem)


@contextlib.asynccontextmanager
async def serving(context):
    """Serve one line to each client: the common name of the certificate that it presented."""

    async def answer(reader, writer):
        subject = (writer.get_extra_info("peercert") or {}).get("subject", ())
        names = dict(item for part in subject for item in part)
        writer.write(f"{names.get('commonName', 'nobody')}\n".encode())
        await writer.drain()
        writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()

    # Refused handshakes are the point of some tests; asyncio would log them.
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()


async def who_am_i(port, context, *, server_name=None):
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=context, server_hostname=server_name or "127.0.0.1"
    )
    try:
        return (await reader.read()).decode().strip()
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()


async def test_a_server_signed_by_the_given_authority_is_trusted(authority):
    async with serving(server_context(authority.server())) as port:
        assert await who_am_i(port, TlsContexts(authority=inline(authority.pem)).context()) == (
            "nobody"
        )


async def test_another_authoritys_server_is_not_trusted(authority):
    async with serving(server_context(make_authority("other").server())) as port:
        with pytest.raises(ssl.SSLCertVerificationError):
            await who_am_i(port, TlsContexts(authority=inline(authority.pem)).context())


async def test_without_an_authority_only_the_systems_are_trusted(authority):
    async with serving(server_context(authority.server())) as port:
        with pytest.raises(ssl.SSLCertVerificationError):
            await who_am_i(port, TlsContexts().context())


async def test_another_server_name_is_refused_unless_expected(authority):
    context = TlsContexts(authority=inline(authority.pem)).context()
    async with serving(server_context(authority.server("kubernetes.default"))) as port:
        with pytest.raises(ssl.SSLCertVerificationError):
            await who_am_i(port, context)
        assert await who_am_i(port, context, server_name="kubernetes.default") == "nobody"


async def test_a_common_name_is_not_a_substitute_for_an_alternative_name(authority):
    context = TlsContexts(authority=inline(authority.pem)).context()
    async with serving(server_context(authority.nameless_server("api.example"))) as port:
        with pytest.raises(ssl.SSLCertVerificationError):
            await who_am_i(port, context, server_name="api.example")


async def test_insecure_verifies_nothing(authority):
    async with serving(server_context(authority.server("elsewhere"))) as port:
        assert await who_am_i(port, TlsContexts(insecure=True).context()) == "nobody"


async def test_the_servers_own_certificate_may_be_the_anchor(authority):
    issued = authority.server()
    async with serving(server_context(issued)) as port:
        context = TlsContexts(authority=inline(issued.certificate)).context()
        assert await who_am_i(port, context) == "nobody"


async def test_a_client_certificate_is_presented(authority, client):
    async with serving(server_context(authority.server(), client_ca=authority)) as port:
        context = TlsContexts(authority=inline(authority.pem)).context(pair(client))
        assert await who_am_i(port, context) == "jane"


async def test_tls_1_1_is_refused_and_alpn_is_http_1_1(authority):
    context = TlsContexts(authority=inline(authority.pem)).context()
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    server = server_context(authority.server())
    server.set_alpn_protocols(["h2", "http/1.1"])
    async with serving(server) as port:
        _, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=context, server_hostname="127.0.0.1"
        )
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
        writer.close()
        await writer.wait_closed()


def test_a_context_stays_the_same_object_until_something_changes(authority, client, tmp_path):
    path = tmp_path / "ca.crt"
    path.write_bytes(authority.pem)
    tls = TlsContexts(authority=PemSource(origin="o", path=path))
    first = tls.context(pair(client))
    assert tls.context(pair(client)) is first
    second = tls.context(pair(authority.client("joe")))
    assert second is not first
    path.write_bytes(authority.pem + make_authority().pem)
    third = tls.context(pair(authority.client("joe")))
    assert third is not second


def test_a_file_rewritten_with_the_same_content_changes_nothing(authority, tmp_path):
    path = tmp_path / "ca.crt"
    path.write_bytes(authority.pem)
    tls = TlsContexts(authority=PemSource(origin="o", path=path))
    first = tls.context()
    path.unlink()
    path.write_bytes(authority.pem)
    assert tls.context() is first


def test_a_half_rotated_pair_keeps_the_working_context(authority, client, caplog):
    tls = TlsContexts(authority=inline(authority.pem))
    working = tls.context(pair(client))
    other = authority.client("joe")
    mixed = pair(Issued(other.certificate, client.key))
    assert tls.context(mixed) is working
    assert tls.context(mixed) is working
    assert len(caplog.records) == 1
    assert "does not match" in caplog.text
    assert tls.context(pair(other)) is not working


def test_an_authority_and_insecure_exclude_each_other(authority):
    with pytest.raises(ConfigError, match="insecure-skip-tls-verify exclude each other"):
        TlsContexts(authority=inline(authority.pem), insecure=True)


def test_bundle_may_hold_comments_in_any_encoding_and_several_certificates(authority):
    bundle = "# Zertifizierungsstelle für Entwickler\n".encode("latin-1")
    bundle += authority.pem + b"\xff\xfe junk\n" + make_authority("second").pem
    context = TlsContexts(authority=inline(bundle)).context()
    assert len(context.get_ca_certs()) == 2


@pytest.mark.parametrize(
    ("pem", "complaint"),
    [
        (b"", "it is empty"),
        (b"hello", "expected -----BEGIN CERTIFICATE-----"),
        (b"\x30\x82\x01\x00", "DER"),
        (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "cut off or damaged"),
        (b"-----BEGIN CERTIFICATE-----\n\xc3\xa4\n-----END CERTIFICATE-----\n", "damaged"),
    ],
)
def test_a_bad_bundle_is_reported_with_its_location(pem, complaint):
    with pytest.raises(ConfigError) as caught:
        TlsContexts(authority=inline(pem)).context()
    assert str(caught.value).startswith("cfg: certificate-authority-data: ")
    assert complaint in str(caught.value)


def test_a_key_in_place_of_the_bundle_is_reported(client):
    with pytest.raises(ConfigError, match="private key instead"):
        TlsContexts(authority=inline(client.key)).context()


def encrypted_key():
    return key_pem(ec.generate_private_key(ec.SECP256R1()), password=b"secret")


def legacy_encrypted_key():
    key = ec.generate_private_key(ec.SECP256R1())
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.BestAvailableEncryption(b"secret"),
    )


@pytest.mark.parametrize(
    ("make", "place", "complaint"),
    [
        (lambda c: Issued(b"nonsense", c.key), "client-certificate-data", "no PEM certificate"),
        (lambda c: Issued(c.certificate, b"nonsense"), "client-key-data", "no PEM private key"),
        (lambda c: Issued(c.key, c.certificate), "client-certificate-data", "private key instead"),
        (
            lambda c: Issued(c.certificate, make_authority().client().key),
            "client-key-data",
            "does not match the certificate of cfg: client-certificate-data",
        ),
        (lambda c: Issued(c.certificate, encrypted_key()), "client-key-data", "password"),
        (lambda c: Issued(c.certificate, legacy_encrypted_key()), "client-key-data", "password"),
        (
            lambda c: Issued(c.certificate[:200] + c.certificate[300:], c.key),
            "client-certificate-data",
            "cut off or damaged",
        ),
    ],
)
def test_a_bad_client_certificate_is_reported_with_its_location(client, make, place, complaint):
    bad = make(client)
    with pytest.raises(CredentialError) as caught:
        TlsContexts(insecure=True).context(pair(bad))
    assert str(caught.value).startswith(f"cfg: {place}")
    assert complaint in str(caught.value)
    assert "BEGIN EC" not in str(caught.value)
    assert bad.key.decode() not in str(caught.value)


def test_the_key_does_not_show_in_a_text_form(client):
    assert client.key.decode()[40:80] not in repr(pair(client))
    assert client.certificate.decode() not in repr(inline(client.certificate))


def test_a_pem_source_is_either_inline_or_a_file():
    with pytest.raises(ValueError, match="exactly one"):
        PemSource(origin="o")


def count_files(directory: Path) -> int:
    return len(list(directory.iterdir()))


async def test_no_file_is_left_and_no_descriptor_either(authority, client, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = count_files(Path("/proc/self/fd"))
    TlsContexts(insecure=True).context(pair(client))
    assert count_files(tmp_path) == 0
    assert count_files(Path("/proc/self/fd")) == before


async def test_without_memory_files_a_private_directory_is_used_and_removed(
    authority, client, tmp_path, monkeypatch
):
    seen = []

    class Spying(ssl.SSLContext):
        def load_cert_chain(self, certfile, keyfile=None, password=None):
            for path in map(Path, (certfile, keyfile)):
                seen.append([stat.S_IMODE(p.stat().st_mode) for p in (path, path.parent)])
            super().load_cert_chain(certfile, keyfile, password)

    def no_memfd(_name):
        raise OSError

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(os, "memfd_create", no_memfd)
    context = Spying(ssl.PROTOCOL_TLS_CLIENT)
    certificates.present_certificate(context, pair(client))
    assert seen == [[0o600, 0o700]] * 2
    assert count_files(tmp_path) == 0
    certificates.trust_bundle(context, authority.pem, origin="o")
    async with serving(server_context(authority.server(), client_ca=authority)) as port:
        assert await who_am_i(port, context) == "jane"


def test_a_missing_proc_falls_back_to_a_private_directory(client, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(certificates, "_MEMORY_FILES", str(tmp_path / "nowhere"))
    TlsContexts(insecure=True).context(pair(client))
    assert count_files(tmp_path) == 0
