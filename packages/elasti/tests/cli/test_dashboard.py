"""How `elasti dashboard` leads a browser to its page."""

from __future__ import annotations

import pathlib
import stat
import urllib.parse
import webbrowser

from elasti.cli.dashboard import announced

URL = "http://127.0.0.1:8000/?code=secret&x=1"


def test_the_code_is_not_among_the_browsers_arguments(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    opened: list[str] = []

    def note(url: str) -> bool:
        opened.append(url)
        return True

    monkeypatch.setattr(webbrowser, "open", note)
    with announced(URL, opens=True):
        (argument,) = opened
        assert "secret" not in argument
        page = pathlib.Path(urllib.parse.unquote(urllib.parse.urlsplit(argument).path))
        assert "url=http://127.0.0.1:8000/?code=secret&amp;x=1" in page.read_text()
        assert stat.S_IMODE(page.stat().st_mode) == 0o600
        assert page.parent == tmp_path
    assert not page.exists()
    assert URL in capsys.readouterr().out
