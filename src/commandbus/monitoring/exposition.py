"""Exposition: samples as the text that Prometheus reads (version 0.0.4)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import accumulate

from commandbus.monitoring.catalogue import Family
from commandbus.monitoring.samples import Labels, Snapshot

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def exposition(snapshot: Snapshot) -> bytes:
    """All series of a snapshot."""
    lines: list[str] = []
    current = ""
    for family, labels, value in snapshot:
        if family.name != current:
            current = family.name
            help_text = family.help.replace("\\", "\\\\").replace("\n", "\\n")
            lines += [f"# HELP {family.name} {help_text}", f"# TYPE {family.name} {family.kind}"]
        if isinstance(value, list):
            lines += _histogram(family, labels, value)
        else:
            lines.append(f"{family.name}{_labels(family.labels, labels)} {number(value)}")
    return ("\n".join(lines) + "\n").encode() if lines else b""


def _histogram(family: Family, labels: Labels, value: list[float]) -> Iterator[str]:
    *counts, total = value
    names = (*family.labels, "le")
    bounds = (*family.bounds, math.inf)
    for bound, count in zip(bounds, accumulate(counts), strict=True):
        yield f"{family.name}_bucket{_labels(names, (*labels, number(bound)))} {number(count)}"
    shown = _labels(family.labels, labels)
    yield f"{family.name}_sum{shown} {number(total)}"
    yield f"{family.name}_count{shown} {number(sum(counts))}"


def _labels(names: tuple[str, ...], values: Labels) -> str:
    if not names:
        return ""
    pairs = (f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True))
    return "{" + ",".join(pairs) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def number(value: float) -> str:
    """A number as Prometheus reads it; whole ones without a point."""
    if value == math.inf:
        return "+Inf"
    return str(int(value)) if value == int(value) else repr(float(value))
