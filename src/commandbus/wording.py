"""Words for people that several ideas share: how long something took."""

from __future__ import annotations

_STEPS = ((86_400, "d"), (3_600, "h"), (60, "min"))


def span(seconds: float) -> str:
    """A time in words, in at most two units: `40 s`, `12 min`, `3 h 20 min`, `2 d`."""
    if seconds < 0.95:
        return "less than a second"
    whole = round(seconds)
    for size, unit in _STEPS:
        if whole >= size:
            many, rest = divmod(whole, size)
            smaller = next(((s, u) for s, u in _STEPS if s < size), None)
            # With ten or more of the larger unit nobody asks for the smaller one.
            if smaller is None or many >= 10 or rest < smaller[0]:
                return f"{many:,} {unit}"
            return f"{many} {unit} {rest // smaller[0]} {smaller[1]}"
    return f"{whole} s"
