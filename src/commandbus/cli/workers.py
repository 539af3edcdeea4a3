"""`workers` and `loads`: who works, and which imports are open."""

from __future__ import annotations

from typing import Annotated

import typer

from commandbus.cli.frame import Frame, View, page_view
from commandbus.cli.options import DomainFilter, Listing
from commandbus.cli.output import Column, Table, jsonable, say, styled_status, text_of
from commandbus.loads.listing import LoadOverview
from commandbus.loads.model import LoadStatus
from commandbus.names import check_choice_or_none
from commandbus.upkeep.overview import WORKERS_SHOWN, WorkerOverview


async def workers(frame: Frame, *, domain: DomainFilter = None) -> View:
    """List the workers, the most silent first, as their last heartbeats told."""
    async with frame.open() as session:
        found = await session.bus.upkeep.figures.workers(None if domain is None else [domain])
    document = {
        "workers": [
            {**jsonable(each), "process": each.process, "is_silent": each.is_silent}
            for each in found
        ]
    }

    def show() -> None:
        _WORKERS.print(found)
        if len(found) == WORKERS_SHOWN:
            say(f"[dim]The {WORKERS_SHOWN} most silent ones; there may be more.[/]")

    return View(document, show)


async def loads(
    frame: Frame,
    *,
    domain: DomainFilter = None,
    status: Annotated[
        str | None, typer.Option("--status", "-s", help="Only this status, for example failed.")
    ] = None,
    is_open: Annotated[
        bool, typer.Option("--open", help="Only those that load, stopped, or are not all queued.")
    ] = False,
    listing: Listing,
) -> View:
    """List loads, newest first; of those that stopped, why, and how to go on."""
    wanted = check_choice_or_none(LoadStatus, status and status.lower(), "status")
    async with frame.open() as session:
        page = await session.bus.loads.page(
            domains=None if domain is None else [domain],
            status=wanted,
            is_open=is_open,
            **listing.of_page,
        )

    def show(items: list[LoadOverview]) -> None:
        _LOADS.print(items)
        for each in items:
            if each.is_interrupted:
                why = text_of(
                    each.error or f"nobody went on with it for {each.idle_seconds:,.0f} s"
                )
                say(f"{each.batch_id} stopped: {why}")
                if each.resume_command is not None:
                    say(f"    [dim]go on with[/] {text_of(each.resume_command)}")

    return page_view(
        page,
        "loads",
        show,
        to_json=lambda each: {
            **jsonable(each),
            "is_interrupted": each.is_interrupted,
            "resume_command": each.resume_command,
        },
    )


def _health(each: WorkerOverview) -> str:
    words = ["[red]silent[/]"] if each.is_silent else []
    if each.stuck:
        words.append(f"[red]{each.stuck} stuck[/]: {text_of(', '.join(each.stuck_types))}")
    return ", ".join(words) or ("idle" if each.is_idle else "busy")


_WORKERS = Table[WorkerOverview](
    Column("WORKER", lambda each: text_of(each.worker_id), may_fold=True),
    Column("DOMAIN", lambda each: each.domain),
    Column("BUSY", lambda each: f"{each.in_flight}/{each.concurrency}", is_number=True),
    Column("SINCE", lambda each: each.started_at),
    Column("HEARTBEAT", lambda each: f"{each.heartbeat_seconds:,.0f} s ago", is_number=True),
    Column("VERSION", lambda each: text_of(each.version)),
    Column("STATE", _health, may_fold=True),
    empty="No workers. `commandbus worker` starts one.",
)


def _rows(load: LoadOverview) -> str:
    rows = f"{load.rows_committed:,}"
    return rows if load.rows_expected is None else f"{rows} of {load.rows_expected:,}"


_LOADS = Table[LoadOverview](
    Column("BATCH", lambda each: each.batch_id),
    Column("DOMAIN", lambda each: each.domain),
    Column("SOURCE", lambda each: text_of(each.source), may_fold=True),
    Column("STATUS", lambda each: styled_status(each.status)),
    Column("ROWS", _rows, is_number=True),
    Column("QUEUED", lambda each: f"{each.rows_dispatched:,}", is_number=True),
    Column("ROWS/S", lambda each: "" if each.rate is None else f"{each.rate:,.0f}", is_number=True),
    Column("CHECKPOINT", lambda each: each.checkpoint_at),
    empty="No loads. `commandbus batch load` starts one.",
)
