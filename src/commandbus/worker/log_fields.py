"""The ids of a lease, as the fields of a log record."""

from __future__ import annotations

import re

from commandbus.database.model import Lease

# `traceparent` of the W3C, as it stands in the JSON of `meta`: version, trace, span, flags.
_TRACE = re.compile(r'"traceparent"\s*:\s*"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-')


def fields_of(lease: Lease) -> dict[str, str | int | None]:
    """Made when something is logged, not for each command."""
    # The trace of the sender; its span is not the one that this is logged in.
    trace = None if lease.meta is None else _TRACE.search(lease.meta)
    return {
        "domain": lease.domain,
        "command_type": lease.command_type,
        "command_id": str(lease.command_id),
        "correlation_id": str(lease.correlation_id),
        "attempt": lease.attempt,
        "trace_id": None if trace is None else trace[1],
    }
