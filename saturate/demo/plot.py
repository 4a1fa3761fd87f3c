"""A series of numbers as a small text plot. Pure."""

from __future__ import annotations

from collections.abc import Sequence

WIDTH = 60
HEIGHT = 8


def text_plot(points: Sequence[tuple[float, float]], width: int = WIDTH, height: int = HEIGHT) -> str:
    """`(x, y)` points, x ascending, as a step plot of `width` x `height` characters with both axes labelled.

    Each column shows the value in force at its x: that of the last point at or before it.
    """
    if not points:
        return "(no ticks)"
    first, last = points[0][0], points[-1][0]
    top = max(y for _, y in points) or 1.0
    columns = []
    at = 0
    for column in range(width):
        x = first + (last - first) * (column + 1) / width
        while at + 1 < len(points) and points[at + 1][0] <= x + 1e-9:
            at += 1
        columns.append(max(0, round(height * points[at][1] / top)))
    label = len(f"{top:g}")
    lines = []
    for row in range(height, 0, -1):
        mark = f"{top * row / height:.0f}" if row in (height, height // 2) else ""
        lines.append(f"  {mark:>{label}} |" + "".join("#" if value >= row else " " for value in columns).rstrip())
    lines.append(f"  {'':>{label}} +{'-' * width}")
    end = f"{last:.0f} s"
    lines.append(f"  {'':>{label}}  {first:.0f} s{end:>{width - len(f'{first:.0f} s')}}")
    return "\n".join(lines)
