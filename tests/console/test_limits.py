"""The screen of rate limits: how full they are, exemptions that end, limits of one user."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from commandbus import CommandBus
from commandbus.access.visibility import viewer_of
from tests.console.world import console
from tests.http_world import caller as anybody
from tests.integration.governed import ADA, governed_bus, orders

pytestmark = pytest.mark.postgres
ROOT = anybody("read", "admin", user="root")
HOSTILE = "<b>moves</b> the data centre"


@pytest.fixture
async def shop(dsn: str) -> AsyncIterator[CommandBus]:
    async with governed_bus(dsn, max_user_pending_batches=2) as bus:
        yield bus


async def test_a_user_is_exempt_for_a_day_with_a_reason_until_somebody_ends_it(
    shop: CommandBus,
) -> None:
    async with console(shop, who=ROOT) as page:
        assert "Nobody has anything pending" in await page.text("/limits")
        await shop.governance.submit(ADA, "GUARDED", orders(3))
        regions = await page.regions("/limits")
        assert "Batches pending: 1 of 2" in regions["users"]
        assert "Batches pending, of all users: 1 of" in regions["global"]

        asked = await page.text("/limits/exempt", user_id="ada")
        assert 'value="86400" selected' in asked
        fields = {"user_id": "ada", "seconds": "86400"}
        assert (await page.submit(asked, "/exempt", **fields)).status_code == 400
        odd = await page.submit(asked, "/exempt", user_id="ada", seconds="5", reason="x")
        assert odd.status_code == 400
        done = await page.submit(asked, "/exempt", **fields, reason=HOSTILE)
        assert done.status_code == 303
        (made,) = (await shop.governance.limits_status(ROOT)).exemptions
        assert (made.user_id, made.exempted_by, made.reason) == ("ada", "root", HOSTILE)
        assert made.expires_at is not None
        assert made.expires_at > datetime.now(UTC) + timedelta(hours=23)
        text = await page.text("/limits", user_id="ada")
        assert "no limit" in text
        assert HOSTILE not in text
        asked = await page.text("/limits/unexempt", user_id="ada")
        assert (await page.submit(asked, "/unexempt", reason="moved")).status_code == 303
        assert (await page.submit(asked, "/unexempt", reason="again")).status_code == 303
        assert (await page.get("/limits/unexempt", user_id="ada")).status_code == 404
        assert "who is exempt" in await page.text("/limits/unexempt")
    assert (await shop.governance.limits_status(ROOT)).exemptions == ()
    found = await shop.search.people(actor="root", viewer=viewer_of(ROOT))
    assert any((each.details or {}).get("reason") == "moved" for each in found.items)


async def test_limits_of_a_user_are_changed_after_a_look_at_old_and_new_and_removed(
    shop: CommandBus,
) -> None:
    async with console(shop, who=ROOT) as page:
        form = await page.text("/limits/change", user_id="ada")
        assert "Now 2 (the default)" in form
        assert (await page.submit(form, "/review")).status_code == 400
        same = await page.submit(form, "/review", user_id="ada", max_pending_batches="")
        assert same.status_code == 400
        review = await page.submit(form, "/review", user_id="ada", max_pending_batches="7")
        assert "Batches pending: 2 (the default) → 7" in review.text
        assert (await shop.governance.limits_status(ROOT)).overrides == ()
        done = await page.submit(review.text, "/change", reason="a large move")
        assert done.status_code == 303
        (own,) = (await shop.governance.limits_status(ROOT)).overrides
        assert (own.user_id, own.max_pending_batches, own.updated_by) == ("ada", 7, "root")
        assert "default 2" in await page.text("/limits")
        form = await page.text("/limits/change", user_id="ada")
        again = await page.submit(form, "/review", user_id="ada", max_pending_batches="7")
        assert again.status_code == 400
        removal = await page.submit(form, "/review", user_id="ada", remove="1")
        assert "Batches pending: 7 → 2 (the default)" in removal.text
        assert (await page.submit(removal.text, "/change", reason="done")).status_code == 303
    assert (await shop.governance.limits_status(ROOT)).overrides == ()


async def test_others_see_how_full_their_own_limits_are_and_change_nothing(
    shop: CommandBus,
) -> None:
    await shop.governance.submit(ADA, "GUARDED", orders(3))
    async with console(shop, "read", user="ada") as page:
        regions = await page.regions("/limits")
        assert "Batches pending: 1 of 2" in regions["own"]
        assert (await page.get("/limits/exempt")).status_code == 403
        assert (await page.post("/limits/exempt", user_id="ada")).status_code == 403
    async with console(shop, "read", "admin", domains=("shop",), user="half") as page:
        assert "Administrators of all domains" in await page.text("/limits")
        assert (await page.get("/limits/change", user_id="ada")).status_code == 403
