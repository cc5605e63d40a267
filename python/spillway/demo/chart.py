# SPDX-License-Identifier: MIT
# spillway/demo/chart.py - charts as SVG: curves with a range per point, and bars against a limit
from __future__ import annotations

import dataclasses
import math
from typing import Callable, Dict, List

_COLOURS = {"keep": "#4c6a92", "recompute": "#b5651d", "spillway": "#1b7f4d",
            "throttled": "#8a8a3c"}
_OTHER = "#666666"  # for other modes
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 720, 440, 70, 60, 50, 30


@dataclasses.dataclass(frozen=True)
class Point:
    x: float
    y: float
    low: float  # lowest y of all rounds
    high: float
    words: str


def _nice_step(span: float) -> float:
    """The distance of ticks: 1, 2 or 5 times a power of ten, of which two to five fit in the
    span."""
    raw = span / 5
    unit = 10.0 ** math.floor(math.log10(raw))
    return next(unit * k for k in (1, 2, 5, 10) if unit * k >= raw)


def _text(x: float, y: float, anchor: str, text: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{text}</text>'


def _sheet(height: float, title: str) -> List[str]:
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        _text(_WIDTH / 2, 26, "middle", title, ' font-size="15"'),
    ]


def _grid(limit: float, to_pixel: Callable[[float], float], vertical: bool,
          bottom: float = _HEIGHT - _BOTTOM) -> List[str]:
    parts = []
    tick, step = 0.0, _nice_step(limit)
    while tick <= limit:
        at, number = to_pixel(tick), f"{tick:g}"
        if vertical:
            line = f"M{at:.1f} {_TOP}V{bottom}"
            label = _text(at, bottom + 18, "middle", number)
        else:
            line = f"M{_LEFT} {at:.1f}H{_WIDTH - _RIGHT}"
            label = _text(_LEFT - 8, at + 4, "end", number)
        parts += [f'<path d="{line}" stroke="#e4e4e4"/>', label]
        tick = round(tick + step, 10)
    return parts


def draw(title: str, x_words: str, y_words: str, curves: Dict[str, List[Point]]) -> str:
    """Draw a curve per mode; both axes begin at zero."""
    points = [point for curve in curves.values() for point in curve]
    x_max, y_max = (1.15 * max(values) or 1.0 for values in zip(*((p.x, p.high) for p in points)))

    def x(value: float) -> float:
        return _LEFT + value / x_max * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - value / y_max * (_HEIGHT - _BOTTOM - _TOP)

    parts = [
        *_sheet(_HEIGHT, title),
        _text(_WIDTH / 2, _HEIGHT - 14, "middle", x_words),
        _text(20, _HEIGHT / 2, "middle", y_words, f' transform="rotate(-90 20 {_HEIGHT / 2})"'),
        *_grid(x_max, x, True), *_grid(y_max, y, False),
    ]
    for mode, curve in curves.items():
        path = "M" + "L".join(f"{x(p.x):.1f} {y(p.y):.1f}" for p in curve)
        path += "".join(f"M{x(p.x):.1f} {y(p.low):.1f}V{y(p.high):.1f}" for p in curve)
        colour = _COLOURS.get(mode, _OTHER)
        parts.append(f'<path d="{path}" stroke="{colour}" stroke-width="2" fill="none"/>')
        for point in curve:
            at_x, at_y, fill = x(point.x), y(point.y), f' fill="{colour}"'
            anchor, shift = ("end", -10) if at_x > _WIDTH * 0.75 else ("start", 10)
            parts += [f'<circle cx="{at_x:.1f}" cy="{at_y:.1f}" r="6"{fill}/>',
                      _text(at_x + shift, at_y - 10, anchor, point.words, fill)]
    return "\n".join([*parts, "</svg>"]) + "\n"


@dataclasses.dataclass(frozen=True)
class Bar:
    """A bar of adjacent parts, each with a name and a length in the unit of the axis."""
    words: str
    parts: Dict[str, float]


_BAR_COLOURS = ("#4c6a92", "#7f9cc0", "#b5651d", "#d9a066")
_BAR_HEIGHT, _BAR_GAP, _BAR_LEFT = 54, 62, 110


def draw_bars(title: str, x_words: str, bars: List[Bar], limit: float, limit_words: str) -> str:
    """Draw the bars, one below the other from zero, and a line at the limit."""
    x_max = 1.05 * max(limit, *(sum(bar.parts.values()) for bar in bars))
    bottom = _TOP + 30 + len(bars) * (_BAR_HEIGHT + _BAR_GAP)

    def x(value: float) -> float:
        return _BAR_LEFT + value / x_max * (_WIDTH - _BAR_LEFT - _RIGHT)

    parts = [
        *_sheet(bottom + 50, title),
        _text((_BAR_LEFT + _WIDTH - _RIGHT) / 2, bottom + 40, "middle", x_words),
        *_grid(x_max, x, True, bottom),
    ]
    top = _TOP + 30
    for bar in bars:
        parts.append(_text(_BAR_LEFT - 10, top + _BAR_HEIGHT / 2 + 5, "end", bar.words))
        at = 0.0
        for index, (words, value) in enumerate(bar.parts.items()):
            colour = _BAR_COLOURS[index % len(_BAR_COLOURS)]
            parts.append(f'<rect x="{x(at):.1f}" y="{top}" width="{x(at + value) - x(at):.1f}" '
                         f'height="{_BAR_HEIGHT}" fill="{colour}"/>')
            # Names of narrow parts would overlap, so adjacent names are on different lines.
            place, anchor = (x(at + value), "end") if x(at) > _WIDTH * 0.75 else (x(at), "start")
            parts.append(_text(place, top + _BAR_HEIGHT + 15 + 16 * (index % 2), anchor, words,
                               f' fill="{colour}"'))
            at += value
        top += _BAR_HEIGHT + _BAR_GAP
    parts += [f'<path d="M{x(limit):.1f} {_TOP}V{bottom}" stroke="#a02020" stroke-width="2" '
              'stroke-dasharray="6 4"/>',
              _text(x(limit) + 6, _TOP + 12, "start", limit_words, ' fill="#a02020"')]
    return "\n".join([*parts, "</svg>\n"])
