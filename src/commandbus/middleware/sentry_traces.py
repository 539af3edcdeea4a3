"""What travels of a trace of Sentry, and what is made of it at the other end.

Beside the ids of the trace Sentry sends how it is sampled, and who began it: two hundred bytes that
every command would carry, and the server would copy at each lease. Only those of a trace that is
recorded need all of it. Otherwise the worker puts together what is left out, as the SDK does for a
trace that came without.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from commandbus.extras import extra

with extra("sentry", "the middleware Sentry"):
    from sentry_sdk.scope import Scope
    from sentry_sdk.tracing_utils import Baggage

TRACE, BAGGAGE = "sentry-trace", "baggage"
#: The end of the text of a trace that is recorded.
_RECORDED = "-1"
#: What a receiver decides by: whose trace it is, and which traces are recorded.
_DECIDING = ("sentry-org_id=", "sentry-sample_rand=")


def travelling(headers: Mapping[str, str]) -> dict[str, str]:
    """Of the headers that the SDK would send those that go with a command."""
    found = dict(headers)
    if BAGGAGE not in found or found.get(TRACE, _RECORDED).endswith(_RECORDED):
        return found
    items = (each.strip() for each in found.pop(BAGGAGE).split(","))
    kept = [each for each in items if not each.startswith("sentry-") or each.startswith(_DECIDING)]
    if kept:
        found[BAGGAGE] = ",".join(kept)
    return found


def complete(scope: Scope) -> None:
    """Have what was left out: errors name the whole of their trace."""
    context: Any = scope._propagation_context
    carried = getattr(context, BAGGAGE, None)
    if carried is not None:
        if "trace_id" not in carried.sentry_items:
            whole = Baggage.populate_from_propagation_context(context)
            whole.sentry_items.update(carried.sentry_items)
            whole.third_party_items = carried.third_party_items
            context.baggage = whole
    elif not hasattr(context, BAGGAGE):  # older SDKs keep the items alone
        items = getattr(context, "dynamic_sampling_context", None)
        if items is not None and "trace_id" not in items:
            context.dynamic_sampling_context = None  # made anew when it is asked for
