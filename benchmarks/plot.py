"""Line charts as SVG, written by hand: axes with ticks, labels, a legend. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 80, 210, 50, 60
COLOURS = ("#1f6feb", "#8b949e", "#d1242f", "#1a7f37", "#8250df", "#bf8700", "#0f766e", "#bc4c00")
DASHES = ("", "6 3", "2 3", "8 3 2 3")

Series = Mapping[str, Sequence[tuple[float, float]]]


def line_chart(title: str, x_label: str, y_label: str, series: Series) -> str:
    """A chart of (x, y) points; the x values stand at equal distances, the y axis begins at 0."""
    if not any(series.values()):
        raise ValueError("there is nothing to draw")
    xs = sorted({x for points in series.values() for x, _ in points})
    top = nice_ceiling(max(y for points in series.values() for _, y in points))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(WIDTH / 2, 24, title, size=15),
        *_x_axis(xs, x_label),
        *_y_axis(top, y_label),
    ]
    for index, (name, points) in enumerate(series.items()):
        parts += _line(index, name, [(_x(xs, x), _y(top, y)) for x, y in sorted(points)])
    return "\n".join([*parts, "</svg>"]) + "\n"


def nice_ceiling(value: float) -> float:
    """The next number of the form 1, 2, 2.5, 4, 5, 6, 8 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 2.5, 4, 5, 6, 8, 10) if step * power >= value)


def short(value: float) -> str:
    """A number for an axis: 1500 as 1.5k, 1000000 as 1M."""
    for limit, letter in ((1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:g}{letter}"
    return f"{value:g}"


def _x(xs: Sequence[float], x: float) -> float:
    room = WIDTH - LEFT - RIGHT
    if len(xs) == 1:
        return LEFT + room / 2
    return LEFT + room * xs.index(x) / (len(xs) - 1)


def _y(top: float, y: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * y / top


def _text(x: float, y: float, text: str, *, anchor: str = "middle", size: int = 12) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
        f'fill="#1f2328">{escape(text)}</text>'
    )


def _x_axis(xs: Sequence[float], label: str) -> list[str]:
    base = HEIGHT - BOTTOM
    parts = [
        f'<line x1="{LEFT}" y1="{base}" x2="{WIDTH - RIGHT}" y2="{base}" stroke="#1f2328"/>',
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 18, label),
    ]
    for x in xs:
        at = _x(xs, x)
        parts.append(
            f'<line x1="{at:.1f}" y1="{base}" x2="{at:.1f}" y2="{base + 5}" stroke="#1f2328"/>'
        )
        parts.append(_text(at, base + 18, short(x)))
    return parts


def _y_axis(top: float, label: str) -> list[str]:
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts = [
        f'<line x1="{LEFT}" y1="{TOP}" x2="{LEFT}" y2="{HEIGHT - BOTTOM}" stroke="#1f2328"/>',
        f'<g transform="rotate(-90 22 {middle})">{_text(22, middle, label)}</g>',
    ]
    for step in range(6):
        value = top * step / 5
        at = _y(top, value)
        if step:
            parts.append(
                f'<line x1="{LEFT}" y1="{at:.1f}" x2="{WIDTH - RIGHT}" y2="{at:.1f}" '
                'stroke="#d0d7de"/>'
            )
        parts.append(_text(LEFT - 8, at + 4, short(value), anchor="end"))
    return parts


def _line(index: int, name: str, points: Sequence[tuple[float, float]]) -> list[str]:
    colour, dash = COLOURS[index % len(COLOURS)], DASHES[index // len(COLOURS) % len(DASHES)]
    stroke = f'stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"'
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    at = TOP + 10 + index * 20
    begin = WIDTH - RIGHT + 16
    return [
        f'<polyline points="{path}" fill="none" {stroke}/>',
        *(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in points),
        f'<line x1="{begin}" y1="{at}" x2="{begin + 24}" y2="{at}" {stroke}/>',
        _text(begin + 32, at + 4, name, anchor="start"),
    ]
