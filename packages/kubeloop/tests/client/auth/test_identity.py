from __future__ import annotations

from urllib.parse import unquote

from hypothesis import given
from hypothesis import strategies as st

from kubeloop.client.auth.identity import Impersonation


def test_a_user_alone_is_one_header():
    assert Impersonation(user="jane").headers() == (("Impersonate-User", "jane"),)


def test_groups_and_extra_values_repeat_their_header():
    who = Impersonation(
        user="jane", uid="7", groups=("a", "b"), extra={"acme.com/project": ("x", "y")}
    )
    assert who.headers() == (
        ("Impersonate-User", "jane"),
        ("Impersonate-Uid", "7"),
        ("Impersonate-Group", "a"),
        ("Impersonate-Group", "b"),
        ("Impersonate-Extra-acme.com%2Fproject", "x"),
        ("Impersonate-Extra-acme.com%2Fproject", "y"),
    )


@given(st.text(min_size=1))
def test_an_extra_key_survives_the_way_through_a_header_name(key):
    try:
        key.encode()
    except UnicodeEncodeError:
        return
    [_, (name, _)] = Impersonation(user="u", extra={key: ("v",)}).headers()
    assert name.isascii()
    assert unquote(name.removeprefix("Impersonate-Extra-")) == key
