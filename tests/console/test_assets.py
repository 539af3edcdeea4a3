"""Sizes and rules of what goes to browsers."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest

from commandbus.http.console.rendering import SCRIPT, assets, environment

CONSOLE = Path(str(files("commandbus.http.console")))
TEMPLATES = sorted((CONSOLE / "templates").rglob("*.html"))
SOURCES = sorted(CONSOLE.rglob("*.py"))


@pytest.mark.parametrize(("name", "most"), [("console.css", 24), ("console.js", 20)])
def test_assets_stay_small(name: str, most: int) -> None:
    assert len(assets()[name].content) <= most * 1024


def test_every_asset_has_its_content_in_its_name() -> None:
    assert all(
        re.fullmatch(r"\w+\.[0-9a-f]{8}\.\w+", each.hashed_name) for each in assets().values()
    )


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_templates_escape_everything_and_have_no_styles_or_handlers(path: Path) -> None:
    text = path.read_text(encoding="utf-8")

    assert not re.search(r"\|\s*safe\b", text)
    assert "autoescape" not in text
    assert not re.search(r"\sstyle\s*=", text)
    assert not re.search(r"\son\w+\s*=", text)
    assert "<style" not in text
    assert not re.search(r"<script(?![^>]*\ssrc=)", text)
    assert "http://" not in text.replace("http://127.0.0.1", "")
    assert "https://" not in text
    name = str(path.relative_to(CONSOLE / "templates"))
    assert environment().get_template(name).name == name


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_markup_is_made_in_one_module_only(path: Path) -> None:
    """`Markup` switches escaping off, so only the pictures and the fields of forms may use it."""
    text = path.read_text(encoding="utf-8")

    assert ("Markup" in text) == (path.name == "rendering.py")


def test_the_script_makes_elements_of_markup_in_one_place() -> None:
    script = assets()["console.js"].content.decode()

    assert len(re.findall(r"\.innerHTML\s*=[^=]", script)) == 1
    assert len(re.findall("createPolicy", script)) == 1
    for forbidden in ("eval(", "Function(", "insertAdjacentHTML", "outerHTML", "document.write"):
        assert forbidden not in script


def test_every_part_of_the_script_is_in_the_one_file_that_browsers_get() -> None:
    parts = {path.stem: path.read_text() for path in (CONSOLE / "assets" / "script").iterdir()}
    script = assets()["console.js"].content.decode()
    names = re.compile(r"^const (\w+) =", re.M)

    assert set(parts) == set(SCRIPT)
    assert [
        name for name in SCRIPT if f"const {names.findall(parts[name])[0]}=" not in script
    ] == []
    everywhere = [name for text in parts.values() for name in names.findall(text)]
    assert len(everywhere) == len(set(everywhere)), "one name is one thing in all parts"


def test_every_icon_that_is_named_is_in_the_sprite() -> None:
    known = set(re.findall(r'symbol id="([^"]+)"', assets()["icons.svg"].content.decode()))
    named = {
        name
        for path in TEMPLATES
        for name in re.findall(r'icon\("([\w-]+)"', path.read_text(encoding="utf-8"))
    }
    screens = {
        name
        for path in SOURCES
        for name in re.findall(r'icon="([\w-]+)"', path.read_text(encoding="utf-8"))
    }

    assert named | screens <= known
