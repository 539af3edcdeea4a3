"""One browser for the tests of a file, and the mark that they all have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.console.browser.chromium import chromium, missing

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of them are long, and run in one process: one browser at a time."""
    reason = None
    for item in items:
        if HERE not in item.path.parents:
            continue
        reason = missing() if reason is None else reason
        item.add_marker(pytest.mark.long)
        item.add_marker(pytest.mark.browser)
        item.add_marker(pytest.mark.postgres)
        item.add_marker(pytest.mark.xdist_group("browser"))
        item.add_marker(pytest.mark.timeout(300))
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


# Not for the whole run: while it lives, its loop runs in this thread, and no other may.
@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found
