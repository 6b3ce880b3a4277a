"""How every figure of this project looks: colours, markers, panels, one legend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#7F5F00", "#E69F00", "#444444")
"""Okabe and Ito's, which people with colour-blindness tell apart; further variants differ by dash too."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
INK, FAINT = "#222222", "#8a8a8a"


def panels(count: int, width: float, share_y: bool = True, height: float = 3.8) -> tuple[Any, Any]:
    """A figure and its `count` axes side by side; inches."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, count, figsize=(width, height), sharey=share_y, squeeze=False, layout="constrained")
    for axis in axes[0]:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", color="#e6e6e6", lw=0.7)
        axis.set_axisbelow(True)
        axis.tick_params(labelsize=8, colors=INK)
        axis.xaxis.label.set_size(9)
        axis.yaxis.label.set_size(9)
    return figure, axes[0]


def finish(figure: Any, axes: list[Any]) -> Any:
    """One legend for all panels, under them, in the order of the first panel's lines."""
    import matplotlib.pyplot as plt

    handles, labels = axes[0].get_legend_handles_labels()
    if labels:
        columns = min(len(labels), max(2, int(figure.get_size_inches()[0] * 9 // (max(map(len, labels)) + 6))))
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=8)
    plt.close(figure)
    return figure


def titled(figure: Any, axes: Sequence[Any], title: str | None = None, legend: Any = None) -> Any:
    """Panel titles at the size of the labels, one statement over all of them, and the legend of the panel `legend`
    under them."""
    import matplotlib.pyplot as plt

    for axis in axes:
        axis.title.set(size=9, color=INK)
    figure.get_layout_engine().set(h_pad=0.09)  # an SVG ends where its last label does, and cuts its descenders
    if title is not None:
        figure.suptitle(title, fontsize=10, color=INK)
    if legend is not None:
        return finish(figure, [legend])
    plt.close(figure)
    return figure
