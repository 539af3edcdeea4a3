"""What people who operate the bus look at: domains and their rates, workers, loads, chores."""

from __future__ import annotations

from pydantic import Field

from commandbus.http.schemas.views import View, view_of
from commandbus.loads.listing import LoadOverview
from commandbus.upkeep.overview import DomainOverview, DomainRates, GroupTrend, WorkerOverview


@view_of(
    DomainRates,
    hide=("domain",),
    describe={
        "as_of": "The last sample; null: there was none yet.",
        "in_rate": "Messages queued per second, over the last minute; null: nobody takes samples.",
        "out_rate": "Messages that left the queue per second, by any way.",
        "lost_hour": "What failed or was parked in each of them, as workers told.",
        "in_hour": "What was queued in each of sixty minutes; null: not sampled.",
    },
)
class RatesView(View):
    """What comes and goes in one domain."""


@view_of(
    DomainOverview,
    describe={
        "about": "Those of ready, delayed and waiting that are estimates: too many to count.",
        "due_seconds": "For how long the first of the ready ones has been due.",
        "silent": "Workers without a sign of life in the last minute.",
    },
)
class DomainOverviewView(View):
    """How one domain stands and moves."""

    later: int = Field(description="Of the delayed ones about those that no worker has.")
    rates: RatesView | None = Field(description="Null: no sample of this domain was taken yet.")
    seconds_to_drain: float | None = Field(
        description="When all that is ready will be done; null: never at this rate, or not known."
    )


@view_of(GroupTrend, describe={"hours": "The last one is the current hour."})
class TrendView(View):
    """How often one failure group was seen, by the hour."""


@view_of(
    WorkerOverview,
    describe={
        "in_flight": "Commands that it has leased; more than `concurrency` wait in its buffer.",
        "version": "Null: it is of a version that does not tell.",
        "completed": "Since it was put on the list, as the counts that follow.",
    },
)
class WorkerView(View):
    """One worker, as its last heartbeat told."""

    process: str = Field(description="Host and number of its process.")
    is_silent: bool = Field(description="It gave no sign of life for a minute.")


class WorkersView(View):
    """Workers, the most silent first."""

    items: list[WorkerView]
    has_more: bool


@view_of(
    LoadOverview,
    describe={
        "rate": "Rows per second over its last checkpoints; null: there are fewer than two.",
        "rows_total": "Rows of the source; null: it has no length.",
        "error": "Why it stopped, with the line if it was one.",
        "idle_seconds": "Since anything of it was changed.",
    },
)
class LoadItem(View):
    """How far a load is."""

    is_open: bool
    is_interrupted: bool = Field(
        description="It stopped at an error, or no process went on with it for five minutes."
    )
    resume_command: str | None = Field(
        description="What to type where the source is; null: not possible, or not needed."
    )
