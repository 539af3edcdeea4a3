"""Let a leased command fail for good, as a worker would."""

from __future__ import annotations

from commandbus.database.model import Lease, Outcome, OutcomeKind
from commandbus.models import ParkReason
from tests.integration.http_shop import FAILURE


def parking(lease: Lease) -> Outcome:
    """The outcome that parks it."""
    return Outcome(lease, OutcomeKind.PARK, reason=ParkReason.PERMANENT, failure=FAILURE)
