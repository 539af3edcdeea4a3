"""What somebody sees of a page, in milliseconds and parts of the window: `make console-load`."""

from __future__ import annotations

import random
import time
from typing import Any

import httpx2
import psycopg
from psycopg.types.json import Jsonb

from commandbus import new_id
from tests.console.browser.chromium import Window, chromium
from tests.console.browser.seeded import World
from tests.console.browser.test_live import shows

#: Milliseconds to the first paint: with the files of the console at hand, and without.
MOST_WARM, MOST_COLD = 250, 600
#: Seconds from a change in the database to the pixel, at the 95th percentile.
MOST_SECONDS = 2.0
#: The same for the progress of a batch.
MOST_PROGRESS = 1.5
#: How far parts of the page may move while it is live (the browser's own sum).
MOST_SHIFT = 0.02
LOADS = 20
#: A domain that nobody works on: what is sent to it stays.
FIGURE = "section:has(h3 a[href$='/domains/email']) .figure"
SEND = "select commandbus.send_commands('email', %s, null)"
CHANGES = 40
#: Milliseconds from an address to the first useful view in a browser that has nothing, by the
#: milliseconds that the network adds to each answer.
FIRST_VIEWS = {0: 1_000, 100: 2_000}
PAINT = """() => new Promise((done) => {
  const found = () => performance.getEntriesByName("first-contentful-paint")[0];
  if (found()) done(found().startTime);
  else new PerformanceObserver(() => found() && done(found().startTime))
    .observe({type: "paint", buffered: true});
})"""
SHIFTS = """
window.__shift = 0;
window.__moved = [];
new PerformanceObserver((list) => list.getEntries().forEach((each) => {
  if (each.hadRecentInput) return;
  window.__shift += each.value;
  for (const one of each.sources) window.__moved.push(one.node?.id || one.node?.className || "");
})).observe({type: "layout-shift", buffered: true});
"""


def percentile(values: list[float], share: float = 0.95) -> float:
    return sorted(values)[max(0, int(len(values) * share) - 1)]


def paints(url: str, world: World) -> bool:
    """The first paint of two pages, with and without the files of the console in the browser."""
    is_good = True
    with chromium() as browser:
        known = Window(browser, url)
        known.sign_in(world.tokens["ada"])
        cookies = known.context.cookies()
        for path in ("/", "/commands"):
            warm, cold = [], []
            for _ in range(LOADS):
                warm.append(_paint(known, path))
                new = Window(browser, url)
                new.context.add_cookies(cookies)
                cold.append(_paint(new, path))
                new.close()
            good = percentile(warm) <= MOST_WARM and percentile(cold) <= MOST_COLD
            is_good = is_good and good
            print(
                f"first paint of {path}, p50 and p95: warm {percentile(warm, 0.5):.0f} and "
                f"{percentile(warm):.0f} ms, cold {percentile(cold, 0.5):.0f} and "
                f"{percentile(cold):.0f} ms{'' if good else '  too slow'}"
            )
        known.close()
    return is_good


def _paint(window: Window, path: str) -> float:
    window.page.goto(f"{window.url}/console{path}", wait_until="load")
    taken: float = window.page.evaluate(PAINT)
    return taken


def follows(url: str, world: World, dsn: str) -> bool:
    """From a change to the pixel, and what moves on pages that are live."""
    with chromium() as browser:
        window = Window(browser, url)
        window.context.add_init_script(SHIFTS)
        window.sign_in(world.tokens["ada"])
        pages = {path: window.context.new_page() for path in ("/troubleshooting", "/commands")}
        for path, page in pages.items():
            page.goto(f"{url}/console{path}", wait_until="load")
        pages["/"] = window.page
        for page in pages.values():  # what moves by live updates, not while the page is made
            page.wait_for_selector("#live[data-state=live]")
            page.evaluate("window.__shift = 0, window.__moved = []")
        with psycopg.connect(dsn, autocommit=True) as connection:
            taken = _changes(window.page, connection)
        steps = _progress(window, world)
        shifts = {path: _shift(page) for path, page in pages.items()}
        window.close()
    p95 = percentile(taken)
    print(f"a change is on the overview after {percentile(taken, 0.5):.2f} s, p95 {p95:.2f} s")
    progress = percentile(steps)
    print(f"and on the bar of its batch after {percentile(steps, 0.5):.2f} s, p95 {progress:.2f} s")
    for path, (shift, moved) in shifts.items():
        print(f"layout shift of {path}: {shift:.4f} {sorted(set(moved))[:5] if shift else ''}")
    is_quick = p95 <= MOST_SECONDS and progress <= MOST_PROGRESS
    return is_quick and all(each <= MOST_SHIFT for each, _ in shifts.values())


def _changes(page: Any, connection: psycopg.Connection[Any]) -> list[float]:
    at, taken = int(page.inner_text(FIGURE).replace(",", "")), []
    for _ in range(CHANGES):
        time.sleep(random.uniform(0.2, 2.2))  # at any time between two looks of the page
        connection.execute(SEND, (Jsonb([{"command_id": str(new_id()), "type": "Tick"}]),))
        at += 1
        taken.append(shows(page, f"{at:,}", FIGURE))
    return taken


def _progress(window: Window, world: World) -> list[float]:
    """Cancel the commands of a batch that nobody works on, one by one, and look at its bar."""
    batch, page, taken = world.ids["batch_id"], window.context.new_page(), []
    page.goto(f"{window.url}/console/batches/email/{batch}", wait_until="load")
    headers = {"Authorization": f"Bearer {world.tokens['ada']}"}
    with httpx2.Client(base_url=f"{window.url}/api/v1", headers=headers) as client:
        found = client.get(f"/command-batches/email/{batch}/commands").json()["items"]
        for number, each in enumerate(found, 1):
            if number == len(found):  # the batch would end, and with it the life of its page
                break
            time.sleep(random.uniform(0.2, 1.2))
            answer = client.post(
                f"/commands/email/{each['command_id']}/cancel", json={"reason": "measured"}
            )
            assert answer.status_code == 200, answer.text
            bar = "[aria-label='How it stands'] .legend li:nth-child(3)"
            taken.append(shows(page, f"{number} canceled", bar))
    page.close()
    return taken


def first_views(url: str, token: str, paths: tuple[str, ...]) -> bool:
    """The first useful view in a browser that knows nothing of the console but its session: pages
    come whole, so it is the first paint.
    """
    is_good = True
    with chromium() as browser:
        known = Window(browser, url)
        known.sign_in(token)
        cookies = known.context.cookies()
        known.close()
        for path in paths:
            for latency, most in FIRST_VIEWS.items():
                taken = [_view(browser, url, path, cookies, latency) for _ in range(LOADS)]
                good = percentile(taken) <= most
                is_good = is_good and good
                print(
                    f"  first view of {path} with {latency} ms of network: "
                    f"{percentile(taken, 0.5):.0f} ms, p95 {percentile(taken):.0f} ms"
                    f"{'' if good else '  too slow'}"
                )
    return is_good


def _view(browser: Any, url: str, path: str, cookies: Any, latency: int) -> float:
    window = Window(browser, url)
    try:
        window.context.add_cookies(cookies)
        # Whoever has clicked a link waits for the connection too.
        network = window.context.new_cdp_session(window.page)
        network.send("Network.enable")
        network.send(
            "Network.emulateNetworkConditions",
            {"offline": False, "latency": latency, "downloadThroughput": -1,
             "uploadThroughput": -1},
        )  # fmt: skip
        return _paint(window, path)
    finally:
        window.close()


def _shift(page: Any) -> tuple[float, list[str]]:
    found: tuple[float, list[str]] = page.evaluate("[window.__shift, window.__moved]")
    return found
