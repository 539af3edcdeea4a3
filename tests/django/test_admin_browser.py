"""The admin in a real browser: a group of 500 retried, a masked payload, a user who may not act.

Needs playwright, and chromium: at COMMANDBUS_TEST_BROWSER, or on the path. `make test-versions`
installs the first.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.django.sites import PATIENCE, SITE, environment, manage
from tests.django.test_worker import query, working
from tests.waiting import until_sync

playwright = pytest.importorskip("playwright.sync_api")
BROWSER = os.environ.get("COMMANDBUS_TEST_BROWSER") or shutil.which("chromium")
pytestmark = [
    pytest.mark.xdist_group("django"),
    pytest.mark.postgres,
    pytest.mark.long,
    pytest.mark.skipif(not BROWSER, reason="no chromium; COMMANDBUS_TEST_BROWSER names one"),
]

PARKED = 500
CANARY = "canary-4711"
SET_UP = f"""
from django.contrib.auth.models import Permission, User
from commandbus import BatchCommand, new_id
from commandbus.django import bus
User.objects.create_superuser("boss", password="boss-secret")
viewer = User.objects.create_user("viewer", password="viewer-secret", is_staff=True)
for name in ("command", "parkedcommand", "failuregroup"):
    viewer.user_permissions.add(Permission.objects.get(codename="view_" + name))
User.objects.create_user("nobody", password="nobody-secret", is_staff=True)
bus.send_many("shop", [
    BatchCommand("Note", new_id(), {{"number": str(n), "is_wrong": True, "password": "{CANARY}",
                                    "note": "seen by those who may"}})
    for n in range({PARKED})
])
"""


@pytest.fixture
def admin(site: str, tmp_path: Path) -> Iterator[str]:
    """The address of the admin, with 500 commands that are parked."""
    done = manage(site, "shell", "-c", SET_UP)
    assert done.returncode == 0, done.stderr
    with working(site, tmp_path / "worker.log", "-d", "shop"):
        until_sync(lambda: count(site, "IN_TROUBLESHOOTING_QUEUE") == PARKED, timeout=PATIENCE)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "manage.py", "runserver", "--noreload", f"127.0.0.1:{port}"]
    with (tmp_path / "server.log").open("wb") as log:
        server = subprocess.Popen(
            command, cwd=SITE, env={**environment(site), "SITE_DEBUG": "1"}, stdout=log, stderr=log
        )
        address = f"http://127.0.0.1:{port}/admin/"

        def answers() -> bool:
            try:
                return bool(urllib.request.urlopen(address, timeout=5).status == 200)
            except OSError:
                return False

        try:
            until_sync(answers, timeout=PATIENCE)
            yield address
        finally:
            server.kill()
            server.wait()


@pytest.fixture
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield opened
        opened.close()


def count(site: str, status: str) -> int:
    text = "select count(*) from commandbus.command_bus_command where status = %s"
    return int(query(site, text, status)[0][0])


def page_of(browser: Any, admin: str, user: str) -> Any:
    """A page of a browser in which this user has logged in."""
    page = browser.new_context().new_page()
    page.set_default_timeout(60_000)
    page.goto(admin)
    page.fill("#id_username", user)
    page.fill("#id_password", f"{user}-secret")
    page.click("input[type=submit]")
    page.wait_for_selector("#user-tools")
    return page


def test_an_operator_retries_a_group_of_500_sees_no_secret_and_others_may_not_act(
    site: str, admin: str, browser: Any
) -> None:
    bus = f"{admin}commandbus/"

    # Who has no permission for it sees nothing of the bus.
    page = page_of(browser, admin, "nobody")
    assert page.locator("a[href*='/commandbus/']").count() == 0
    assert page.goto(f"{bus}parkedcommand/").status == 403

    # Who may look has no action, and no payload.
    page = page_of(browser, admin, "viewer")
    page.goto(f"{bus}failuregroup/")
    assert page.locator("#result_list tbody tr").count() == 1
    assert page.locator("select[name=action]").count() == 0
    page.goto(f"{bus}command/")
    page.locator("#result_list tbody th a").first.click()
    page.wait_for_selector("text=MOVED_TO_TROUBLESHOOTING_QUEUE")
    assert "seen by those who may" not in page.content()

    # The operator sees the payload without its secret.
    page = page_of(browser, admin, "boss")
    page.goto(f"{bus}command/")
    page.locator("#result_list tbody th a").first.click()
    page.wait_for_selector("text=seen by those who may")
    assert CANARY not in page.content()
    assert "[REDACTED]" in page.content()

    page.goto(f"{bus}failuregroup/")
    if folder := os.environ.get("COMMANDBUS_TEST_PICTURES"):
        page.screenshot(path=f"{folder}/admin-groups.png")
    page.locator("#result_list tbody input[type=checkbox]").first.check()
    page.select_option("select[name=action]", "retry_group")
    page.click("button[name=index]")
    page.wait_for_selector(f"text=retry of {PARKED} commands, {PARKED} are done")
    if folder:
        page.screenshot(path=f"{folder}/admin-retried.png")
    assert count(site, "PENDING") == PARKED
    assert page.locator("#result_list tbody tr").count() == 0
    actors = query(
        site,
        "select actor, count(*) from commandbus.command_bus_audit"
        " where event_type = 'OPERATOR_RETRY' group by actor",
    )
    assert actors == [("boss", PARKED)]
