"""How long things are kept, and who removes them then."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest

from commandbus import (
    CommandBus,
    InvalidNameError,
    InvalidOperationError,
    InvalidSettingError,
    Settings,
)
from commandbus.testing import fake_bus
from commandbus.upkeep import retention
from commandbus.upkeep.retention import parse_age
from commandbus.worker.maintenance import Maintenance
from tests.sql.helpers import Session
from tests.sql.test_retention import DAY, age, statuses


@pytest.mark.parametrize(
    ("text", "seconds"), [("30d", 2_592_000), ("12h", 43_200), ("90m", 5_400), ("2W", 1_209_600)]
)
def test_ages_are_written_as_people_write_them(text: str, seconds: int) -> None:
    assert parse_age(text).total_seconds() == seconds


@pytest.mark.parametrize("text", ["", "30", "d", "-1d", "1.5d", "1y", "9999999d"])
def test_what_is_no_age_is_refused(text: str) -> None:
    with pytest.raises(InvalidSettingError, match="write 30d"):
        parse_age(text)


async def test_bad_rules_are_refused_and_nothing_is_changed(bus: CommandBus) -> None:
    before = await bus.upkeep.get_retention()
    with pytest.raises(InvalidSettingError, match="no kind 'payloads'"):
        await bus.upkeep.set_retention("payloads", DAY)
    with pytest.raises(InvalidSettingError, match="one minute at least"):
        await bus.upkeep.set_retention("audit", timedelta(seconds=59))
    with pytest.raises(InvalidNameError):
        await bus.upkeep.set_retention("audit", DAY, domain="No")
    with pytest.raises(InvalidNameError):
        await bus.upkeep.clear_retention("audit", domain="No")
    with pytest.raises(InvalidNameError):
        await bus.upkeep.prune(domain="No")
    with pytest.raises(InvalidSettingError, match="negative"):
        await bus.upkeep.prune(older_than=-DAY)
    with pytest.raises(InvalidSettingError, match="contradicts"):
        await bus.upkeep.doctor(window=DAY, full=True)
    with pytest.raises(InvalidNameError):
        await bus.upkeep.doctor(domain="No")
    assert await bus.upkeep.get_retention() == before


async def test_workers_prune_by_the_rules_as_a_chore(
    db: Session, bus: CommandBus, caplog: pytest.LogCaptureFixture
) -> None:
    await db.put("COMPLETED")
    await age(db)
    chores = Maintenance(bus._store, lambda: ["payments"], Settings())
    caplog.set_level("INFO")

    await chores.step()
    assert await statuses(db) == Counter(COMPLETED=1), "without a rule nothing is removed"

    await bus.upkeep.set_retention("commands", 30 * DAY)
    await db.rows("delete from commandbus.command_bus_chore")
    await chores.step()

    assert await statuses(db) == Counter()
    assert "retention of payments removed 1 commands" in caplog.text


async def test_a_run_stops_when_its_time_is_up(
    db: Session, bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "CHUNK", 1)
    for _ in range(3):
        await db.put("COMPLETED")
    await age(db)

    (result,) = await bus.upkeep.prune(older_than=DAY, kinds=["commands"], seconds=0)

    assert result.pruned["commands"] == 1
    assert not result.is_done


async def test_in_memory_there_is_neither_doctor_nor_retention() -> None:
    bus = fake_bus()
    for call in (bus.upkeep.doctor(), bus.upkeep.prune(), bus.upkeep.get_retention()):
        with pytest.raises(InvalidOperationError, match="needs PostgreSQL"):
            await call
