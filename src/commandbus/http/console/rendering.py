"""Templates: one environment, in which every value is text unless our own code made the markup."""

from __future__ import annotations

import hashlib
import mimetypes
import re
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from commandbus.http.console import formats

if TYPE_CHECKING:
    from commandbus.http.console.view import View

#: Blocks of a template with such names are sent again when they change.
REGION = "region_"

#: Pictures that lists have in each row: they are in the page, so that a row names them shortly.
REPEATED = ("copy", "s-progress")

#: The parts of the one script, in their order: what one part calls stands before it.
SCRIPT = ("page", "times", "regions", "live", "forms", "clicks", "palette", "keys", "session")

#: Whose page is being rendered: macros and functions of templates ask it for addresses and rights.
RENDERING: ContextVar[View] = ContextVar("commandbus_console_view")


@dataclass(frozen=True, slots=True)
class Asset:
    """A file that browsers keep: another content has another address."""

    name: str
    content: bytes
    media_type: str

    @property
    def hashed_name(self) -> str:
        """The name with the hash of the content."""
        stem, _, end = self.name.rpartition(".")
        return f"{stem}.{hashlib.sha256(self.content).hexdigest()[:8]}.{end}"


@lru_cache
def assets() -> dict[str, Asset]:
    """The files of the console by name."""
    folder = files("commandbus.http.console") / "assets"
    given = {
        file.name: file.read_bytes()
        for file in folder.iterdir()
        if file.is_file() and not file.name.startswith(".")
    }
    given["console.js"] = _joined([(folder / "script" / f"{n}.js").read_bytes() for n in SCRIPT])
    found = {}
    for name, content in given.items():
        media_type = mimetypes.guess_type(name)[0] or "application/octet-stream"
        if name.endswith((".js", ".css")):
            content = _without_notes(content)  # noqa: PLW2901  (smaller and smaller)
        if name.endswith(".css"):
            content = _without_spaces(content)  # noqa: PLW2901
        if name.endswith(".js"):
            content = _squeezed(content)  # noqa: PLW2901
        found[name] = Asset(name, content, media_type)
    return found


def _joined(parts: Sequence[bytes]) -> bytes:
    """One script of its parts, in one scope: browsers ask for one file."""
    return b"\n".join((b'"use strict";', b"(() => {", *parts, b"})();"))


def _without_notes(content: bytes) -> bytes:
    """Without indentation and lines of comments, which are for readers of the source."""
    lines = (line.strip() for line in content.splitlines())
    return b"\n".join(each for each in lines if each and not each.startswith((b"//", b"/*")))


def _without_spaces(style: bytes) -> bytes:
    """Rules without the spaces and line ends that only readers of the source need."""
    return re.sub(rb";?\s*([{};])\s*|([,:])\s+", lambda each: each[1] or each[2], style)


def _squeezed(script: bytes) -> bytes:
    """A script without the spaces around its signs. Texts stay, and so do line ends but those after
    signs that cannot end a statement. The script has no regular expressions, which look alike.
    """
    return re.sub(
        rb'("(?:\\.|[^"\\\n])*"|`[^`]*`)'
        rb"|[ ]*(=>|[=<>!&|]+|[(){}\[\]?:,;])[ ]*|(?<=[;{,(])\n",
        lambda each: each[1] or each[2] or b"",
        script,
    )


@lru_cache
def sprite() -> dict[str, str]:
    """The pictures by name, each as a symbol."""
    text = assets()["icons.svg"].content.decode()
    return {found[1]: found[0] for found in re.finditer(r'<symbol id="([^"]+)".*?</symbol>', text)}


@lru_cache
def environment() -> Environment:
    """Every name is escaped, and a name that is not there is an error."""
    found = Environment(
        loader=PackageLoader("commandbus.http.console", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    found.filters.update(formats.FILTERS)
    found.globals.update(_functions())
    found.globals["ui"] = found.get_template("macros.html").module
    return found


def _functions() -> dict[str, Any]:
    """What templates may call. Macros too: the view is found, not passed."""

    def url(page: str, **values: Any) -> str:
        return RENDERING.get().url(page, **values)

    def asset(name: str) -> str:
        return RENDERING.get().asset(name)

    def may(scope: str, domain: str | None = None) -> bool:
        return RENDERING.get().may(scope, domain)

    def csrf(action: str) -> Markup:
        """The hidden field that a form to this address needs."""
        value = RENDERING.get().csrf(action)
        return Markup('<input type="hidden" name="csrf" value="{}">').format(value)

    def icon(name: str, label: str = "") -> Markup:
        """A picture of the sprite; without a label it is only decoration."""
        about = (
            Markup(' role="img" aria-label="{}"').format(label)
            if label
            else Markup(' aria-hidden="true"')
        )
        file = "" if name in REPEATED else asset("icons.svg")
        return Markup('<svg class="icon"{}><use href="{}#{}"/></svg>').format(about, file, name)

    def repeated_icons() -> Markup:
        """The pictures that stand in the page itself, for all who use them."""
        found = Markup("").join(Markup(sprite()[name]) for name in REPEATED)  # noqa: S704  (our file)
        return Markup('<svg class="sr" aria-hidden="true">{}</svg>').format(found)

    return {
        "url": url, "asset": asset, "may": may, "csrf": csrf, "icon": icon,
        "repeated_icons": repeated_icons,
        "now": formats.now, "bars": formats.bars, "points": formats.points,
        "columns": formats.columns, "stacked": formats.stacked,
    }  # fmt: skip


def render(view: View, template: str, values: Mapping[str, Any]) -> str:
    """A whole page."""
    token = RENDERING.set(view)
    try:
        return environment().get_template(template).render(view=view, **values)
    finally:
        RENDERING.reset(token)


def render_regions(view: View, template: str, values: Mapping[str, Any]) -> dict[str, str]:
    """The regions of a page, from the same template."""
    token = RENDERING.set(view)
    try:
        found = environment().get_template(template)
        context = found.new_context({"view": view, **values})
        return {
            name.removeprefix(REGION): "".join(block(context))
            for name, block in found.blocks.items()
            if name.startswith(REGION)
        }
    finally:
        RENDERING.reset(token)
