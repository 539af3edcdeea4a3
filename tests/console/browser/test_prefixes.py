"""Below a prefix of two parts, and behind a proxy that takes one away: nothing leads past it."""

from __future__ import annotations

import http.client
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from tests.console.browser.chromium import Window
from tests.console.browser.keyboard import Keyboard
from tests.console.browser.seeded import SETTINGS, World, deployment
from tests.console.browser.test_live import add_ready, shows, waiting
from tests.http_server import Served

#: What concerns one connection only.
OF_CONNECTION = {"connection", "keep-alive", "transfer-encoding", "host", "content-length"}


@contextmanager
def proxy(service: Served, prefix: str) -> Iterator[str]:
    """Takes the prefix away and says so; what comes goes on at once, streams too."""
    inner = urlsplit(service.url)

    class Proxy(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if not self.path.startswith(f"{prefix}/"):
                self.send_error(404)
                return
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {
                name: value
                for name, value in self.headers.items()
                if name.lower() not in OF_CONNECTION
            }
            headers |= {
                "Host": self.headers["Host"], "X-Forwarded-For": self.client_address[0],
                "X-Forwarded-Proto": "https", "X-Forwarded-Prefix": prefix,
            }  # fmt: skip
            to = http.client.HTTPConnection(inner.hostname or "", inner.port)
            try:
                to.request(self.command, self.path.removeprefix(prefix), body or None, headers)
                self._answer(to.getresponse())
            except OSError:
                self.close_connection = True  # one of both ends has gone
            finally:
                to.close()

        do_POST = do_GET  # noqa: N815  (the name that the server looks for)

        def _answer(self, found: http.client.HTTPResponse) -> None:
            self.send_response(found.status)
            for name, value in found.getheaders():
                if name.lower() not in OF_CONNECTION:
                    self.send_header(name, value)
            self.end_headers()
            while part := found.read1(65_536):
                self.wfile.write(part)
                self.wfile.flush()

        def log_message(self, *args: Any) -> None:
            """Nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}{prefix}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def walks(browser: Any, url: str, world: World, dsn: str, ready: int) -> None:
    """Sign in, look at every screen, at what is live, find, sign out; a request that does not begin
    with the address of the service fails it.
    """
    window = Window(browser, url)
    window.sign_in(world.tokens["ada"])
    page, keys = window.page, Keyboard(window.page)
    assert page.url == f"{url}/console/"
    shows(page, f"{ready}")
    add_ready(dsn, 1)
    shows(page, f"{ready + 1}")
    assert page.inner_text("#live").startswith("Live")

    found = page.eval_on_selector_all(".nav a", "all => all.map((each) => each.href)")
    assert len(found) >= 12
    for each in found:
        assert each.startswith(f"{url}/console"), each
        assert page.goto(each).status == 200, each

    keys.press("/")
    keys.type("email")
    with page.expect_navigation():
        keys.press("Enter")
    keys.follow("Pause email", "a")
    keys.to_field("reason")
    keys.type("the provider is down")
    keys.follow("Pause email", "button")
    assert "email is paused" in page.inner_text("body")
    page.get_by_role("button", name="Resume email").click()
    page.get_by_text("email is resumed").wait_for()
    assert page.url == f"{url}/console/domains/email"

    page.goto(f"{url}/docs")
    assert "/api/v1/" in page.inner_text("main")
    page.goto(f"{url}/console/me")
    page.get_by_role("button", name="Sign out").click()
    page.get_by_label("API token").wait_for()
    assert page.url == f"{url}/console/sign-in"
    window.check(url)
    window.close()


def test_below_a_prefix_and_behind_a_proxy_that_takes_one_away_nothing_leads_past_it(
    browser: Any, dsn: str
) -> None:
    settings = replace(SETTINGS, trusted_proxies="127.0.0.1")
    with deployment(dsn, waiting, workers=False, settings=settings, prefix="/a/b") as (
        service,
        world,
    ):
        walks(browser, f"{service.url}/a/b", world, dsn, 3)
        with proxy(service, "/ops/bus") as outside:
            walks(browser, f"{outside}/a/b", world, dsn, 4)
