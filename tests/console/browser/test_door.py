"""The door in a real browser: links from elsewhere, refused streams, the end of a session."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from tests.console.browser.chromium import Window
from tests.console.browser.seeded import SETTINGS, deployment
from tests.console.browser.test_live import add_ready, shows, waiting


@contextmanager
def another_site(link: str) -> Iterator[str]:
    """A page of another site with a link, as a chat has it."""

    class Chat(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(f'<!doctype html><a href="{link}">look at this</a>'.encode())

        def log_message(self, *args: Any) -> None:
            """Nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Chat)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        # Another name is another site; the port alone would not be.
        yield f"http://localhost:{server.server_address[1]}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_link_in_a_chat_opens_the_page_of_who_is_signed_in_and_the_form_of_others(
    browser: Any, dsn: str
) -> None:
    with deployment(dsn, waiting, workers=False) as (service, world):
        link = f"{service.url}/console/workers?domain=email"
        with another_site(link) as chat:
            window = Window(browser, service.url)
            window.sign_in(world.tokens["ada"])
            window.page.goto(chat)
            window.page.get_by_text("look at this").click()
            window.page.wait_for_selector("h1:has-text('Workers')")
            assert window.page.url == link
            window.close()

            stranger = Window(browser, service.url)
            stranger.page.goto(chat)
            stranger.page.get_by_text("look at this").click()
            stranger.page.get_by_label("API token").wait_for()
            stranger.close()


def test_a_page_whose_stream_is_refused_asks_instead_and_says_so(browser: Any, dsn: str) -> None:
    settings = replace(SETTINGS, max_console_streams=1, user_share=1.0, token_share=1.0)
    with deployment(dsn, waiting, workers=False, settings=settings) as (service, world):
        first, second = Window(browser, service.url), Window(browser, service.url)
        first.sign_in(world.tokens["ada"])
        first.page.wait_for_function(
            "() => document.querySelector('#live').innerText.startsWith('Live')"
        )
        second.expected = ("Failed to load", "status of 503", "status of 429", "MIME")
        second.sign_in(world.tokens["grace"])
        page = second.page
        page.wait_for_function(
            "() => document.querySelector('#live').innerText.includes('No place for a stream')"
        )
        add_ready(dsn, 1)

        shows(page, "4")
        assert page.evaluate("document.documentElement.classList.contains('stale')") is False
        assert page.locator("#live").get_attribute("data-state") == "live"
        first.close()
        second.close()


def test_the_end_of_a_session_takes_nothing_away_that_was_typed(browser: Any, dsn: str) -> None:
    with deployment(dsn, waiting, workers=False) as (service, world):
        window = Window(browser, service.url)
        window.expected = ("Failed to load", "status of 401")
        window.sign_in(world.tokens["ada"])
        page = window.page
        page.goto(f"{service.url}/console/execution-limits/email")
        page.wait_for_selector("#live[data-state=live]")
        field = page.locator("main form[method=post] input:not([type=hidden])").first
        field.fill("SendInvoice")
        other = window.context.new_page()
        other.goto(f"{service.url}/console/me")
        other.get_by_role("button", name="Sign out").click()
        other.get_by_label("API token").wait_for()

        page.wait_for_function(
            "() => document.querySelector('#ending').innerText.includes('has ended')"
        )

        assert field.input_value() == "SendInvoice"
        assert "Signed out" in page.inner_text("#live")
        window.close()
