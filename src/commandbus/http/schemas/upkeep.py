"""The doctor, retention, chores, settings, seals; what people did, and what an id is."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import Field

from commandbus.commands.people import Identified, PersonEvent
from commandbus.http.schemas.base import DomainName, Flag, Form, Reason, Whole, example
from commandbus.http.schemas.views import View, view_of
from commandbus.models import Viewer
from commandbus.upkeep.checks import CheckRun, LastCheck
from commandbus.upkeep.findings import Finding
from commandbus.upkeep.retention import RetentionRule
from commandbus.upkeep.states import Chore, DatabaseSetting, SealState, SettingsOverview

RunNumber = Annotated[Whole, Field(ge=1, le=2**63 - 1)]


@view_of(Finding)
class FindingView(View):
    """What was found under one code in one domain."""

    examples: list[str] = Field(
        description="Empty for callers who do not see the batches of all owners."
    )


@view_of(CheckRun, hide=("result", "kind"))
class CheckRunView(View):
    """One run, and what it found."""

    is_healthy: bool | None = Field(description="No finding is an error; null: no result.")
    findings: list[FindingView]
    since: datetime | None = Field(
        description="Only what was changed since then was looked at; null: everything."
    )
    repairs: list[dict[str, Any]] = Field(description="What was repaired: domain and places.")


def check_run_view(run: CheckRun) -> CheckRunView:
    """The view of a run."""
    result = run.result or {}
    return CheckRunView.of(
        run,
        is_healthy=run.is_healthy,
        findings=[FindingView.of(each) for each in run.findings],
        since=result.get("since"),
        repairs=result.get("repairs", []),
    )


class DoctorView(View):
    """What the doctor found last, and whether a run goes on."""

    last: CheckRunView | None
    newer: CheckRunView | None = Field(
        description="A run after that: it goes on, or has ended without a result."
    )
    is_running: bool
    fixable: list[FindingView] = Field(description="What a repair would look after.")
    well_since: datetime | None = Field(
        description="The first look that found nothing, if none has found something since."
    )

    @classmethod
    def show(
        cls,
        found: LastCheck,
        domains: frozenset[str] | None,
        viewer: Viewer,
        well_since: datetime | None,
    ) -> DoctorView:
        """The view of what concerns these domains; None: of everything."""
        last = None if found.last is None else found.last.within(domains, viewer)
        newer = None if found.newer is None else found.newer.within(domains, viewer)
        return cls(
            last=None if last is None else check_run_view(last),
            newer=None if newer is None else check_run_view(newer),
            is_running=found.is_running,
            fixable=[] if last is None else [FindingView.of(each) for each in last.fixable],
            well_since=well_since,
        )


class StartDoctor(Form):
    """What to examine."""

    domain: DomainName | None = Field(
        None, description="Only this one. Needed if the caller is limited to several."
    )
    full: Flag = Field(
        False,
        description="Everything; otherwise, above a million commands, what was changed in a day.",
    )


class FixFindings(Form):
    """What to repair: what a run has found, which must be the last one."""

    model_config = example(run_id=7, reason="found after the restore of Monday")

    run_id: RunNumber
    reason: Reason
    domain: DomainName | None = Field(
        None, description="Only in this one. Needed if the caller is limited to several."
    )


@view_of(RetentionRule, hide=("keep",))
class RetentionView(View):
    """How long a kind of rows is kept."""

    keep_seconds: float | None = Field(description="Null: without limit.")


@view_of(
    Chore,
    describe={
        "every_seconds": "Seconds after which it is begun again; null: not known.",
        "ended_at": "When it was done last; null: its process does not tell.",
        "told": "What it did then, by domain; `*`: what is about all of them.",
    },
)
class ChoreView(View):
    """A chore that one process does for all: when it was begun last, and what it did."""

    domain: str | None = Field(description="Null: it is about all domains.")


@view_of(DatabaseSetting)
class DatabaseSettingView(View):
    """A setting that holds for the whole database."""


@view_of(SettingsOverview)
class SettingsView(View):
    """Which settings hold; secrets are masked."""

    of_database: list[DatabaseSettingView]
    of_service: dict[str, Any] = Field(description="Of the HTTP service; secrets are masked.")


class VerificationView(View):
    """When the audit was compared with its seals, and what came of it."""

    verified_at: datetime
    is_intact: bool | None
    window_seconds: float | None = Field(
        description="Only the rows of seals of this time were compared; null: all."
    )
    rows: int
    seals: int
    findings: list[FindingView]


@view_of(SealState, hide=("verified",))
class SealStateView(View):
    """How far the audit is sealed."""

    verified: VerificationView | None = Field(description="Null: it was never verified.")


def seal_state_view(state: SealState, *, has_findings: bool) -> SealStateView:
    """The view of a state; findings are about the whole database."""
    run, verified = state.verified, None
    if run is not None and run.result is not None and run.finished_at is not None:
        verified = VerificationView(
            verified_at=run.finished_at,
            is_intact=run.is_healthy,
            window_seconds=run.result.get("window_seconds"),
            rows=run.result["rows"],
            seals=run.result["seals"],
            findings=[FindingView.of(each) for each in run.findings if has_findings],
        )
    return SealStateView.of(state, verified=verified)


@view_of(
    PersonEvent,
    describe={
        "events": "How many events it stands for; what follows is of the newest.",
        "first_id": "The oldest event that it stands for.",
    },
)
class PersonEventView(View):
    """What somebody did."""


@view_of(
    Identified,
    describe={
        "kind": "`command`, `batch`, `ticket`, `operation` or `correlation`.",
        "status": "Null for `correlation`.",
    },
)
class IdentifiedView(View):
    """What an id is the id of."""
