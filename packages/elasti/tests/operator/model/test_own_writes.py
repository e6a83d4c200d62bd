"""Our own writes, until the caches show them."""

from __future__ import annotations

from elasti.operator.model.own_writes import WriteOverlay


def test_a_write_is_seen_before_the_cache_has_it():
    overlay: WriteOverlay[str] = WriteOverlay()
    overlay.wrote("x", "10", "ours")
    assert overlay.newest("x", None, "") == "ours"
    assert overlay.newest("x", "old", "9") == "ours"
    assert overlay.newest("x", "same", "10") == "same"
    overlay.caught_up("x", "10")
    assert overlay.newest("x", None, "") is None, "the cache has caught up"


def test_a_delete_is_seen_before_the_cache_has_it():
    overlay: WriteOverlay[str] = WriteOverlay()
    overlay.deleted("x", "10")
    assert overlay.newest("x", "old", "10") is None
    assert overlay.newest("x", "made anew", "12") == "made anew"


def test_what_another_removed_is_gone():
    overlay: WriteOverlay[str] = WriteOverlay()
    overlay.wrote("x", "10", "ours")
    overlay.gone("x", "9")
    assert overlay.newest("x", None, "") == "ours", "an older one went"
    overlay.gone("x", "10")
    assert overlay.newest("x", None, "") is None
