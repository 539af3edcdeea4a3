"""What a page costs: bytes and requests of the browser."""

from __future__ import annotations

from typing import Any

from tests.console.browser.chromium import Window
from tests.console.browser.seeded import deployment, full

KB = 1024


def test_the_first_load_is_small(browser: Any, dsn: str) -> None:
    with deployment(dsn, full, workers=False) as (service, world):
        window = Window(browser, service.url)
        window.sign_in(world.tokens["ada"])
        cookies = window.context.cookies()
        window.close()
        for path in ("/", "/commands", "/troubleshooting", "/batches", "/audit?machine=1"):
            cold = Window(browser, service.url)
            cold.context.add_cookies(cookies)
            sizes: dict[str, int] = {}
            cold.page.on("response", lambda answer, sizes=sizes: _measure(answer, sizes))
            cold.page.goto(f"{service.url}/console{path}", wait_until="load")
            if cold.page.locator("#live-pause").count():
                cold.page.wait_for_selector("#live[data-state=live]")
            whole = sum(sizes.values())

            assert len(sizes) <= 5, (path, sizes)
            assert whole <= 110 * KB, (path, whole, sizes)
            for end, most in ((".css", 24), (".js", 20)):
                assert all(size <= most * KB for name, size in sizes.items() if name.endswith(end))
            cold.check(path)
            cold.close()


def _measure(answer: Any, sizes: dict[str, int]) -> None:
    if "/live/" not in answer.url and "event-stream" not in answer.headers.get("content-type", ""):
        sizes[answer.url] = len(answer.body())
