"""Pictures of each screen, at three widths, in both themes: `make console-pictures`.

They are for people to look at, one by one. `python -m tests.console.browser.pictures FOLDER`
"""

from __future__ import annotations

import asyncio
import re
import shutil
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import psycopg

from commandbus import Settings
from commandbus.embedded import EmbeddedPostgres
from commandbus.wiring import migrate_database
from tests.console.browser.chromium import Window, chromium, missing
from tests.console.browser.seeded import addresses, deployment, full

#: An hour as one may have been: since twelve minutes an account is missing.
HOUR = (
    "update commandbus.command_bus_tally set since = now() - interval '1 day'",
    "delete from commandbus.command_bus_sample where seconds = 60",
    "insert into commandbus.command_bus_sample (seconds, at, domain, queued, removed, completed,"
    " failed, parked, retried) select 60, date_trunc('minute', now()) - n * interval '1 minute', d,"
    " 900 + 300 * sin(n / 7.0) + n * 37 % 60, 880 + 280 * sin(n / 7.0) + n * 53 % 80, 800, 0,"
    " case when d = 'payments' and n between 1 and 12 then 160 - n * 9 else 0 end, 0"
    " from generate_series(1, 60) n, unnest(array['email', 'payments']) d",
)
WIDTHS = (390, 820, 1440)
THEMES = ("light", "dark")


def name_of(path: str, ids: dict[str, str]) -> str:
    """A name of a file: the address, with the kinds of ids in place of ids."""
    for kind, value in ids.items():
        if len(value) > 12:
            path = path.replace(value, kind)
    return re.sub(r"[^\w]+", "-", path).strip("-") or "overview"


def take(window: Window, folder: Path, ids: dict[str, str], paths: list[str]) -> int:
    page, taken = window.page, 0
    for path in paths:
        answer = page.goto(f"{window.url}/console{path}", wait_until="load")
        if "html" not in answer.headers.get("content-type", ""):
            continue
        for theme in THEMES:
            page.emulate_media(color_scheme=theme)
            for width in WIDTHS:
                page.set_viewport_size({"width": width, "height": 900})
                file = folder / f"{name_of(path, ids)}-{width}-{theme}.png"
                page.screenshot(path=str(file), full_page=width == 390)
                taken += 1
    return taken


def main(folder: Path) -> None:
    if reason := missing():
        sys.exit(reason)
    folder.mkdir(parents=True, exist_ok=True)
    data = Path(tempfile.mkdtemp(prefix="commandbus-pictures-"))
    try:
        with EmbeddedPostgres(data) as database:
            _run(migrate_database(database.dsn, Settings()))
            with deployment(database.dsn, full) as (service, world), chromium() as browser:
                with psycopg.connect(database.dsn, autocommit=True) as connection:
                    for statement in HOUR:
                        connection.execute(statement.encode())
                window = Window(browser, service.url)
                window.page.goto(f"{service.url}/console/sign-in")
                window.page.screenshot(path=str(folder / "sign-in-1440-light.png"))
                window.sign_in(world.tokens["ada"])
                paths = [each for each in addresses(world) if "export" not in each]
                taken = take(window, folder, world.ids, paths)
                window.close()
        print(f"{taken} pictures in {folder}")
    finally:
        shutil.rmtree(data, ignore_errors=True)


def _run(work: Any) -> None:
    thread = threading.Thread(target=lambda: asyncio.run(work))
    thread.start()
    thread.join()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "build/pictures"))
