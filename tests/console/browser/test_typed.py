"""What somebody types stays, and what a page says follows what was typed."""

from __future__ import annotations

from typing import Any

from tests.console.browser.chromium import Window
from tests.console.browser.seeded import SETTINGS, World, be_patient, deployment, full
from tests.console.browser.test_live import HIDE, waiting
from tests.http_server import served

REASON = "three parcels were lost, ticket 4711"
IS_LIVE = "#live[data-state=live]"


def looks_elsewhere_and_comes_back(page: Any) -> None:
    """Long enough that the page gives its stream up; with a new one it gets everything again."""
    page.evaluate(HIDE, True)
    page.wait_for_timeout(3_500)
    page.evaluate(
        "void (window.__took = new Promise((done) => { const Real = EventSource;"
        " window.EventSource = class extends Real { constructor(url) { super(url);"
        " this.addEventListener('regions', () => setTimeout(done)); } }; }))"
    )
    page.evaluate(HIDE, False)
    page.evaluate("window.__took")


def test_a_typed_reason_survives_a_look_at_another_tab_and_is_sent(browser: Any, dsn: str) -> None:
    with deployment(dsn, full, workers=False) as (service, world):
        window = Window(browser, service.url)
        window.sign_in(world.tokens["ada"])
        page = window.page
        page.goto(f"{service.url}/console/approvals/{world.ids['ticket']}")
        page.wait_for_selector(IS_LIVE)
        field = page.get_by_label("Reason")
        field.fill(REASON)

        looks_elsewhere_and_comes_back(page)
        page.keyboard.press("Tab")
        page.wait_for_timeout(100)  # what was put off while the field had the focus comes now

        assert field.input_value() == REASON
        on = page.evaluate("document.activeElement.textContent")
        assert "Approve" in on, on
        posts = page.expect_request(lambda each: each.method == "POST")
        with posts as sent, page.expect_navigation():
            page.keyboard.press("Enter")
        assert "three+parcels+were+lost" in (sent.value.post_data or "")
        window.check("a typed reason")
        window.close()


def test_what_was_typed_survives_a_region_that_did_change(browser: Any, dsn: str) -> None:
    apps: list[Any] = []
    world = World()

    def tune(app: Any) -> None:
        be_patient(app)
        apps.append(app)

    with served(dsn, lambda bus: full(bus, world), SETTINGS, tune=tune) as service:
        window = Window(browser, service.url)
        window.sign_in(world.tokens["ada"])
        page = window.page
        page.goto(f"{service.url}/console/approvals/{world.ids['ticket']}")
        page.wait_for_selector(IS_LIVE)
        page.get_by_label("Reason").fill(REASON)
        page.get_by_role("button", name="Approve").focus()
        marks = apps[0].state.commandbus_console.placeholders
        real = marks.filled
        marks.filled = lambda markup, tokens: real(markup, tokens) + "<p>renewed</p>"

        page.evaluate(HIDE, True)
        page.wait_for_timeout(3_500)
        page.evaluate(HIDE, False)
        page.wait_for_selector("#region-decision >> text=renewed")

        assert page.get_by_label("Reason").input_value() == REASON
        assert "Approve" in page.evaluate("document.activeElement.textContent")
        window.close()


def hrefs(page: Any, selector: str) -> list[str]:
    found: list[str] = page.eval_on_selector_all(selector, "all => all.map(each => each.href)")
    return found


def test_a_typed_filter_is_in_every_link_and_line_of_the_page(browser: Any, dsn: str) -> None:
    with deployment(dsn, full, workers=False) as (service, world):
        window = Window(browser, service.url)
        window.sign_in(world.tokens["ada"])
        page = window.page
        page.goto(f"{service.url}/console/commands?status=COMPLETED")
        page.wait_for_selector(IS_LIVE)
        page.get_by_label("State").select_option("IN_TROUBLESHOOTING_QUEUE")
        page.get_by_label("Error code").press_sequentially("NO_ACCOUNT")
        page.wait_for_function("() => location.search.includes('error_code=NO_ACCOUNT')")

        links = hrefs(page, "a[download]") + hrefs(page, "[aria-label='Sent within'] a")
        links += hrefs(page, "a[rel=next]")
        assert len(links) >= 7
        assert all("error_code=NO_ACCOUNT" in each for each in links), links
        assert all("COMPLETED" not in each for each in links), links
        assert "NO_ACCOUNT" in page.inner_text("[aria-label='Filters']")
        assert "NO_ACCOUNT" in page.locator("#p-same-cli").text_content()
        assert "NO_ACCOUNT" in page.locator("#p-same-curl").text_content()
        assert page.get_by_text("Decide about them in Troubleshooting").is_visible()
        assert page.evaluate("document.activeElement.id") == "f-code"
        page.get_by_label("Error code").press_sequentially("_OF_NOBODY")
        page.wait_for_selector("text=None matches")
        assert page.get_by_text("Cancel the chosen ones").count() == 0
        # A time is typed in the viewer's zone, here an hour ahead of UTC, and is sent with it.
        assert "NO_ACCOUNT" in page.locator("#l-codes").text_content()
        since = page.get_by_label("Sent from")
        since.fill("2026-01-02T03:04")
        page.wait_for_function("() => location.search.includes('created_after=2026-01-02T02%3A04')")
        page.get_by_role("button", name="UTC or local").click()
        assert since.input_value() == "2026-01-02T02:04"
        page.reload()
        page.wait_for_selector(IS_LIVE)
        assert since.input_value() == "2026-01-02T02:04"
        page.get_by_role("button", name="UTC or local").click()
        assert since.input_value() == "2026-01-02T03:04"
        # What else sends one back to this page sends one to this filter.
        page.get_by_role("button", name="Theme").click()
        page.wait_for_load_state()
        assert "NO_ACCOUNT_OF_NOBODY" in page.url
        page.get_by_role("button", name="Compact rows").click()
        page.wait_for_selector("[data-density=compact]")
        assert "NO_ACCOUNT_OF_NOBODY" in page.url
        window.check("a typed filter")
        window.close()


def test_everything_in_a_domain_is_offered_only_where_the_list_is_everything(
    browser: Any, dsn: str
) -> None:
    with deployment(dsn, full, workers=False) as (service, world):
        window = Window(browser, service.url)
        window.sign_in(world.tokens["ada"])
        page = window.page
        page.goto(f"{service.url}/console/troubleshooting?domain=payments")
        page.get_by_text("Everything in payments").wait_for()
        page.get_by_label("Message, code").fill("account")
        page.get_by_text("Everything in payments").wait_for(state="detached")
        page.get_by_label("Message, code").fill("")
        page.get_by_label("Domain", exact=True).last.fill("email")
        page.wait_for_function("() => location.search.includes('domain=email')")

        assert page.get_by_text("Everything in payments").count() == 0
        assert "email" in page.locator("#p-same-cli").text_content()
        assert page.input_value("#switch") == "email"
        window.close()


def test_two_deployments_on_one_host_keep_their_places_apart_and_sign_out_forgets_them(
    browser: Any, dsn: str
) -> None:
    with deployment(dsn, waiting, workers=False) as (service, world):
        window = Window(browser, service.url)
        window.sign_in(world.tokens["ada"])
        page = window.page
        page.goto(f"{service.url}/console/workers")
        kept = page.evaluate("Object.keys(localStorage).filter((each) => each.includes('recent'))")
        assert kept == ["commandbus.recent /console/"]
        assert "workers" in page.evaluate("localStorage['commandbus.recent /console/']")

        page.goto(f"{service.url}/console/me")
        page.get_by_role("button", name="Sign out").click()
        page.wait_for_url("**/sign-in")

        assert page.evaluate("localStorage['commandbus.recent /console/']") == "[]"
        window.close()


def test_paper_is_unfolded_and_in_utc_and_another_clock_is_named(browser: Any, dsn: str) -> None:
    with deployment(dsn, waiting, workers=False) as (service, world):
        window = Window(browser, service.url)
        window.sign_in(world.tokens["ada"])
        page = window.page
        page.goto(f"{service.url}/console/commands")
        page.wait_for_selector(IS_LIVE)
        times = "[...document.querySelectorAll('main time')].map((each) => each.textContent)"
        closed = "document.querySelectorAll('main details:not([open])').length"
        assert page.inner_text("[data-clock]") == ""
        folded = page.evaluate(closed)
        assert folded > 0

        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.evaluate(closed) == 0
        assert all(each.endswith(" UTC") for each in page.evaluate(times))
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert page.evaluate(closed) == folded

        window.context.add_init_script(
            "const real = Date.now.bind(Date); Date.now = () => real() + 600000;"
        )
        page.reload()
        page.wait_for_selector(IS_LIVE)
        assert "10 min early" in page.inner_text("[data-clock]")
        assert not any("10 min" in each for each in page.evaluate(times))
        window.close()
