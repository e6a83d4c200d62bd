from __future__ import annotations

import asyncio

import pytest

from kubeloop.client.auth.credentials import (
    Anonymous,
    FileToken,
    FixedHeaders,
    basic,
    bearer,
)
from kubeloop.client.errors import CredentialError

pytestmark = pytest.mark.virtual_time


def of(token):
    return {"Authorization": f"Bearer {token}"}


class CoarseStat:
    """Makes a path's ctime look constant, which no system call can."""

    def __init__(self, monkeypatch, path):
        self._frozen = path.stat()
        real = type(path).stat
        monkeypatch.setattr(
            type(path), "stat", lambda p, **kw: self._frozen if p == path else real(p, **kw)
        )


async def test_a_token_is_stripped_of_white_space(tmp_path):
    path = tmp_path / "token"
    path.write_text("  abc\n")
    assert await FileToken(path, origin="o").headers() == of("abc")


async def test_a_replaced_file_is_seen_at_once(tmp_path):
    path = tmp_path / "token"
    path.write_text("one")
    source = FileToken(path, origin="o")
    assert await source.headers() == of("one")
    (tmp_path / "new").write_text("two")
    (tmp_path / "new").rename(path)
    assert await source.headers() == of("two")


async def test_a_kubelets_symlink_swap_is_seen_at_once(tmp_path):
    for generation in ("1", "2"):
        (tmp_path / generation).mkdir()
        (tmp_path / generation / "token").write_text(f"token-{generation}")
    (tmp_path / "..data").symlink_to("1")
    (tmp_path / "token").symlink_to("..data/token")
    source = FileToken(tmp_path / "token", origin="o")
    assert await source.headers() == of("token-1")
    (tmp_path / "..tmp").symlink_to("2")
    (tmp_path / "..tmp").rename(tmp_path / "..data")
    assert await source.headers() == of("token-2")


async def test_a_change_that_stat_hides_is_seen_after_sixty_seconds(tmp_path, monkeypatch):
    path = tmp_path / "token"
    path.write_text("one")
    source = FileToken(path, origin="o")
    await source.headers()
    CoarseStat(monkeypatch, path)
    await source.headers()
    path.write_text("two")
    await asyncio.sleep(59.9)
    assert await source.headers() == of("one")
    await asyncio.sleep(0.2)
    assert await source.headers() == of("two")


async def test_after_a_401_the_file_is_read_again(tmp_path, monkeypatch):
    path = tmp_path / "token"
    path.write_text("one")
    CoarseStat(monkeypatch, path)
    source = FileToken(path, origin="o")
    refused = await source.headers()
    path.write_text("two")
    assert await source.headers() == of("one")
    source.invalidate(refused)
    assert await source.headers() == of("two")


async def test_a_late_401_to_an_old_token_changes_nothing(tmp_path):
    path = tmp_path / "token"
    path.write_text("one")
    source = FileToken(path, origin="o")
    old = await source.headers()
    path.write_text("two!")
    await source.headers()
    path.unlink()
    source.invalidate(old)
    assert await source.headers() == of("two!")


async def test_a_vanished_file_keeps_the_last_token_until_a_401(tmp_path, caplog):
    path = tmp_path / "token"
    path.write_text("sesame")
    source = FileToken(path, origin="users[0].user.tokenFile")
    await source.headers()
    path.unlink()
    assert await source.headers() == of("sesame")
    assert await source.headers() == of("sesame")
    assert len(caplog.records) == 1
    assert "sesame" not in caplog.text
    source.invalidate()
    with pytest.raises(CredentialError, match=r"users\[0\].user.tokenFile: cannot read .*token"):
        await source.headers()


async def test_a_file_caught_empty_keeps_the_last_token(tmp_path):
    path = tmp_path / "token"
    path.write_text("one")
    source = FileToken(path, origin="o")
    await source.headers()
    path.write_text("")
    assert await source.headers() == of("one")
    path.write_text("two")
    assert await source.headers() == of("two")


async def test_a_fallback_serves_while_the_file_gives_nothing(tmp_path):
    path = tmp_path / "token"
    source = FileToken(path, origin="o", fallback=of("inline"))
    assert await source.headers() == of("inline")
    path.write_text("from-file")
    assert await source.headers() == of("from-file")


@pytest.mark.parametrize("content", ["", " \n", "two words", "line\nline", "näh", "\x00"])
async def test_what_a_header_cannot_carry_is_refused_and_not_repeated(tmp_path, content):
    path = tmp_path / "token"
    path.write_text(content)
    with pytest.raises(CredentialError, match="one line of printable ASCII") as caught:
        await FileToken(path, origin="o").headers()
    assert str(path) in str(caught.value)
    assert not content.strip() or content not in str(caught.value)


async def test_a_directory_and_an_impossible_path_are_credential_errors(tmp_path):
    with pytest.raises(CredentialError, match="is a directory"):
        await FileToken(tmp_path, origin="o").headers()
    with pytest.raises(CredentialError, match="cannot read"):
        await FileToken(tmp_path / "a\0b", origin="o").headers()


async def test_fixed_credentials_stay_after_a_401():
    fixed = FixedHeaders(basic("me", "pä:ss"))
    fixed.invalidate()
    assert await fixed.headers() == {"Authorization": "Basic bWU6cMOkOnNz"}
    nobody = Anonymous()
    nobody.invalidate()
    assert await nobody.headers() == {}
    assert await nobody.ssl_context() is None


def test_a_bearer_header_needs_a_token():
    with pytest.raises(CredentialError, match="here: the token is empty"):
        bearer("", origin="here")
