"""A real browser: where it is, and what it must never do while a page of the console is open."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.canaries import assert_hidden

#: Names the program; otherwise the usual ones are looked for.
VARIABLE = "COMMANDBUS_CHROMIUM"
USUAL = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
AXE = Path(__file__).parents[3] / "build/axe/node_modules/axe-core/axe.min.js"
#: No request of its own, and the same pictures on every machine.
ARGUMENTS = (
    "--no-sandbox", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--force-color-profile=srgb", "--disable-gpu",
)  # fmt: skip
#: Milliseconds that a page may take, however much else the machine does.
PATIENCE_MS = 30_000
RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa")
#: Trusted Types and the policy count as they do for a user; what they refuse is kept here.
_REPORTS = """
window.__refused = [];
document.addEventListener("securitypolicyviolation", (event) => {
  window.__refused.push(event.violatedDirective + " " + event.blockedURI + " " + event.sourceFile);
});
"""


def missing() -> str:
    """What is not here; empty: nothing."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "Playwright is not installed"
    if program() is None:
        return f"no Chromium was found; install it (Debian: chromium), or name it in {VARIABLE}"
    return "" if AXE.exists() else "axe-core is not here: make axe fetches it with npm"


def program() -> str | None:
    """Where the browser is."""
    if named := os.environ.get(VARIABLE):
        return named
    return next((found for name in USUAL if (found := shutil.which(name))), None)


@contextmanager
def chromium() -> Iterator[Any]:
    """One browser; a context of it is like a new profile."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program(), args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


class Window:
    """A window on the console of one service; `faults` is what no page may ever do."""

    def __init__(self, browser: Any, url: str, **options: Any) -> None:
        self.url = url
        self.faults: list[str] = []
        #: Addresses of all requests since `requests.clear()`.
        self.requests: list[str] = []
        #: What may be said on the browser's console, for example that the service is gone.
        self.expected: tuple[str, ...] = ()
        options.setdefault("viewport", {"width": 1440, "height": 900})
        options.setdefault("locale", "en-GB")
        options.setdefault("timezone_id", "Europe/Berlin")
        self.context = browser.new_context(**options)
        self.context.set_default_timeout(PATIENCE_MS)
        self.context.add_init_script(_REPORTS)
        self.context.on("request", self._requested)
        self.context.on("console", self._said)
        self.context.on("weberror", lambda each: self.faults.append(f"error: {each.error}"))
        self.page = self.context.new_page()

    def _requested(self, request: Any) -> None:
        self.requests.append(request.url)
        if not request.url.startswith((self.url, "data:", "blob:")):
            self.faults.append(f"a request left the origin: {request.url}")

    def _said(self, message: Any) -> None:
        if message.type in {"error", "warning"} and not any(
            each in message.text for each in self.expected
        ):
            self.faults.append(f"{message.type} on the console: {message.text}")

    def sign_in(self, token: str) -> None:
        """As a person does: the form, the token, Enter."""
        self.page.goto(f"{self.url}/console/")
        self.page.get_by_label("API token").fill(token)
        self.page.keyboard.press("Enter")
        self.page.wait_for_url(lambda url: "/sign-in" not in url)

    def open(self, path: str) -> str:
        """Open a page; returns its source, as the server sent it."""
        answer = self.page.goto(f"{self.url}/console{path}", wait_until="domcontentloaded")
        text: str = answer.text()
        return text

    def check(self, where: str) -> None:
        """Fail if the page did anything that it must not."""
        self.faults += self.page.evaluate("window.__refused.splice(0)")
        assert not self.faults, (where, self.faults)
        assert_hidden(self.page.content(), where)

    def axe(
        self, where: str, rules: tuple[str, ...] = (), only: tuple[str, ...] = (), page: Any = None
    ) -> None:
        """Fail if axe finds something that people with other senses or hands stumble over."""
        page = page or self.page
        if not page.evaluate("'axe' in window"):
            page.evaluate(AXE.read_text(encoding="utf-8"))
        chosen = (
            {"type": "rule", "values": list(only)}
            if only
            else {"type": "tag", "values": list(rules or RULES)}
        )
        found = page.evaluate(
            "(options) => axe.run(document, options).then((all) => all.violations.map((each) =>"
            " [each.id, each.help, each.nodes.slice(0, 4).map((node) => node.html.slice(0, 200)"
            " + ' ' + (node.any[0]?.message ?? '').slice(0, 200))]))",
            {"runOnly": chosen, "resultTypes": ["violations"]},
        )
        assert not found, (where, json.dumps(found, indent=1))

    def sideways(self) -> int:
        """Pixels by which the page is wider than its window, once it has settled."""
        width: int = 1
        for _ in range(40):
            width = self.page.evaluate(
                "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
            if width <= 0:
                break
            self.page.wait_for_timeout(50)
        return width

    def path(self) -> str:
        """The path of the page that is open, below /console."""
        return urlsplit(self.page.url).path.removeprefix("/console")

    def close(self) -> None:
        self.context.close()
