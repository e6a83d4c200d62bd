"""Make the site: docs/ as Zensical takes it, in build/docs, and build/site from that.

Two things are added to the pages. Links that leave docs/ become text with the path in the repository, since a
site has no such files; and every public name of kubeloop gets its place in the API reference, which
mkdocstrings fills from docstrings and signatures. Zensical runs with --strict: a link to a page or heading
that is not there fails. So does a page that would load anything from another server.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS, STAGED, SITE = ROOT / "docs", ROOT / "build" / "docs", ROOT / "build" / "site"
KUBELOOP = ROOT / "packages" / "kubeloop" / "src" / "kubeloop"
PAGES = {".md", ".svg", ".png", ".css", ".js"}
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|#)([^)#\s]+)(#[^)]*)?\)")
GENERATED = re.compile(r"\A<!-- Generated .*? -->\n+")
LINE_ANCHOR = re.compile(r'<a id="__codelineno[^>]*></a>')
CODE = re.compile(r"`[^`\n]+`")
LOADED = re.compile(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=\"?((?:https?:)?//[^\"> ]+)")


def stage() -> None:
    """Copy docs/ to build/docs, with links that stay inside."""
    shutil.rmtree(STAGED, ignore_errors=True)
    for path in sorted(DOCS.rglob("*")):
        if path.suffix not in PAGES:
            continue
        copy = STAGED / path.relative_to(DOCS)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            copy.write_text(inside(path), encoding="utf-8")
        else:
            shutil.copy(path, copy)
    for name, text in api_pages().items():
        page = STAGED / name
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text, encoding="utf-8")


def inside(path: Path) -> str:
    """Return a page whose links lead to pages: others are named by their path in the repository."""

    def rewritten(link: re.Match[str]) -> str:
        goal = Path(os.path.normpath(path.parent / link[2]))
        if goal.is_relative_to(DOCS) and goal.suffix in PAGES:
            return link[0]
        text, place = link[1], str(goal.relative_to(ROOT))
        return text if text.strip("`") == place else f"{text} (`{place}`)"

    # Who edits the file must know how it is made; the site's readers need not.
    text = LINK.sub(rewritten, GENERATED.sub("", path.read_text(encoding="utf-8")))
    # In a table GitHub wants a bar in code escaped, and Python-Markdown wants it as it is.
    return CODE.sub(lambda code: code[0].replace("\\|", "|"), text)


def api_pages() -> dict[str, str]:
    """Return the API reference: a page for each package and each public module beside them."""
    packages = (path.parent for path in KUBELOOP.glob("*/__init__.py"))
    modules = (path for path in KUBELOOP.glob("*.py") if path.stem[0] != "_")
    return {f"kubeloop/api/{path.stem}.md": _api_page(path) for path in (*packages, *modules)}


def _api_page(path: Path) -> str:
    dotted = f"kubeloop.{path.stem}"
    if path.is_file():
        return f"# {dotted}\n\n::: {dotted}\n"
    tree = ast.parse((path / "__init__.py").read_text(encoding="utf-8"))
    # A package that shows no names is imported by its modules.
    places = exported(tree) or [
        f"{dotted}.{module.stem}" for module in sorted(path.glob("*.py")) if module.stem[0] != "_"
    ]
    about = ast.get_docstring(tree) or ""
    return "\n\n".join((f"# {dotted}", about, *(f"::: {place}" for place in places))) + "\n"


def exported(tree: ast.Module) -> list[str]:
    """Return the names that a package shows (`from m import X as X`), by where each is defined."""
    shown = [
        # Classes first, functions after them.
        (alias.name.islower(), alias.name.lower(), f"{node.module}.{alias.name}")
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name
    ]
    return [place for *_, place in sorted(shown)]


def name_parts() -> None:
    """Name what the theme leaves without a name for those who hear the page: parts of the menu, lines, corners of tables."""
    menu = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]["nav"]
    for page in SITE.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        for number, part in enumerate(menu, 1):
            text = text.replace(
                f'aria-labelledby="__nav_{number}_label"', f'aria-label="{next(iter(part))}"'
            )
        # The table of contents is one landmark, not one for each heading that has others below it.
        text = re.sub(
            r'<nav class="md-nav" aria-label="[^"]*"', '<nav class="md-nav" role="none"', text
        )
        text = re.sub(r"<th([^>]*)></th>", r"<td\1></td>", text)
        page.write_text(LINE_ANCHOR.sub("", text), encoding="utf-8")


def foreign() -> list[str]:
    """Return what pages of the site would load from other servers."""
    return sorted(
        f"{page.relative_to(SITE)}: {url}"
        for page in SITE.rglob("*.html")
        for url in LOADED.findall(page.read_text(encoding="utf-8"))
    )


def main() -> int:
    """Make the site with the Zensical beside this Python; returns what the shell is to see."""
    stage()
    zensical = Path(sys.executable).with_name("zensical")
    environment = os.environ | {"NO_COLOR": "1"}
    done = subprocess.run(
        [zensical, "build", "--clean", "--strict"], cwd=ROOT, env=environment, check=False
    )
    if done.returncode:
        return done.returncode
    name_parts()
    if loaded := foreign():
        print("pages load from other servers:", *loaded, sep="\n  ")
        return 1
    print(f"{SITE.relative_to(ROOT)}: {len(list(SITE.rglob('*.html')))} pages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
