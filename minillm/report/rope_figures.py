"""Figures of RoPE: scores over distance, wavelengths against the trained length, scalings, partial rotation."""

from __future__ import annotations

import math
from typing import Any

import torch

from minillm.position.rope import RoPE
from minillm.position.scaling import NTK, Linear, Llama3, NTKByParts, Scaling, YaRN
from minillm.position.scaling_by_length import DynamicNTK, LongRoPE
from minillm.report.scheme_numbers import decay_bound, rotated_score
from minillm.report.style import COLOURS, FAINT, INK, panels, titled

DASHES = ("-", "--", "-.", ":", (0, (6, 2)), (0, (1, 1)))
TRAINED, FACTOR, LONGER, WIDTH = 4096, 32.0, 131072, 96
"""Trained length, factor, their product and head_dim of Phi-3-vision-128k-instruct, for its LongRoPE factors."""
PHI3 = (
    1.03, 1.05, 1.05, 1.08, 1.23, 1.23, 1.3, 1.45, 1.6, 1.65, 1.9, 2.86, 3.69, 5.42, 5.49, 5.49, 9.09, 11.58, 15.66,
    15.77, 15.79, 18.36, 21.99, 23.08, 30.01, 32.35, 32.59, 35.56, 39.95, 53.84, 56.2, 57.95, 59.29, 59.77, 59.92,
    61.19, 61.96, 62.5, 63.37, 63.48, 63.48, 63.66, 63.85, 64.08, 64.76, 64.8, 64.81, 64.81,
)  # fmt: skip
"""long_factor of its config.json, rounded to two decimals."""


def decay() -> Any:
    from matplotlib.ticker import FuncFormatter

    figure, (left, right) = panels(2, width=10, share_y=False)
    near, far = torch.arange(0, 257), torch.arange(1, 2**16)
    # Equal steps of the logarithm, six to a doubling: single distances swing too fast to be drawn.
    step = (6 * torch.log2(far.double())).floor().long()
    steps, which, counts = step.unique(return_inverse=True, return_counts=True)
    middle = [float(far[step == s].double().mean()) for s in steps]
    for theta, colour, dash in zip((1e2, 1e4, 5e5, 1e7), COLOURS, DASHES, strict=False):
        scheme = RoPE(theta=theta)
        style = {"color": colour, "ls": dash, "lw": 1.4, "label": f"theta = {theta:,.0f}"}
        left.plot(near.tolist(), decay_bound(scheme, 128, near).tolist(), **style)
        mean = torch.zeros(len(steps)).index_add(0, which, rotated_score(scheme, 128, far)) / counts
        right.plot(middle, mean.tolist(), **style)
    right.axhline(0, color=FAINT, lw=0.8)
    left.set(title="Factor of the upper bound on |q.k|", xlabel="distance (tokens)", ylabel="mean |S_j| over the pairs")
    left.set_ylim(bottom=0)
    right.set(
        title="Score of a query and keys that are 1 in every channel (local mean)",
        xlabel="distance (tokens, logarithmic)",
        ylabel="share of the score at distance 0",
    )
    right.set_xscale("log", base=2)
    right.set_xticks([2**k for k in range(0, 17, 2)])
    right.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    title = "RoPE, head_dim 128: scores fall with distance, the later the larger the base"
    return titled(figure, [left, right], title, legend=left)


def wavelengths() -> Any:
    figure, axes = panels(2, width=10, height=4.0)
    pairs = range(WIDTH // 2)
    cases: tuple[list[tuple[str, RoPE]], ...] = (
        [(f"theta = {theta:,.0f}", RoPE(theta=theta)) for theta in (1e4, 1e5, 5e5, 1e7)],
        [
            ("theta = 10,000, no scaling", RoPE()),
            ("linear", RoPE(scaling=Linear(FACTOR))),
            ("ntk", RoPE(scaling=NTK(FACTOR))),
            ("yarn", RoPE(scaling=YaRN(FACTOR, TRAINED))),
        ],
    )
    for axis, lines in zip(axes, cases, strict=True):
        for (label, scheme), colour, dash in zip(lines, COLOURS, DASHES, strict=False):
            turns = [2 * math.pi / f for f in scheme.frequencies(WIDTH, 0)]
            axis.plot(pairs, turns, color=colour, ls=dash, lw=1.5, label=label)
        axis.legend(frameon=False, fontsize=8, loc="upper left")
        axis.axhline(TRAINED, color=FAINT, lw=1)
        _right_of(axis, TRAINED, f"trained length {TRAINED}")
        axis.set(xlabel="pair of channels", yscale="log")
    axes[1].axhline(LONGER, color=FAINT, lw=1, ls=":")
    _right_of(axes[1], LONGER, f"{FACTOR:g} times that", above=True)
    axes[0].set(ylabel="wavelength (tokens, logarithmic)", title="Bases")
    axes[1].set(title=f"Scalings by {FACTOR:g}")
    title = f"RoPE, head_dim {WIDTH}: pairs above the line make no full turn within the trained length"
    return titled(figure, axes, title)


def _right_of(axis: Any, y: float, text: str, above: bool = False) -> None:
    """A word on a horizontal line, at its right end."""
    axis.annotate(
        text,
        (1, y),
        xycoords=("axes fraction", "data"),
        xytext=(0, 3 if above else -9),
        textcoords="offset points",
        ha="right",
        fontsize=8,
        color=INK,
    )


def scaling() -> Any:
    figure, (left, right) = panels(2, width=10, height=4.0)
    pairs = range(WIDTH // 2)
    plain = RoPE().frequencies(WIDTH, 0)
    rules: list[tuple[str, Scaling]] = [
        ("linear", Linear(FACTOR)),
        ("ntk", NTK(FACTOR)),
        ("ntk_by_parts", NTKByParts(FACTOR, TRAINED)),
        ("yarn", YaRN(FACTOR, TRAINED)),
        ("llama3: 1 to 4 turns", Llama3(FACTOR, TRAINED, 1.0, 4.0)),
        ("longrope: Phi-3's factors", LongRoPE(FACTOR, TRAINED, 1.0, PHI3)),
    ]
    for (label, rule), colour, dash in zip(rules, COLOURS, DASHES, strict=False):
        changed = RoPE(scaling=rule).frequencies(WIDTH, LONGER)
        left.plot(
            pairs, [c / p for c, p in zip(changed, plain, strict=True)], color=colour, ls=dash, lw=1.5, label=label
        )
    for grown, colour, dash in zip((1, 2, 8, 32), COLOURS, DASHES, strict=False):
        changed = RoPE(scaling=DynamicNTK(1.0, TRAINED)).frequencies(WIDTH, TRAINED * grown)
        ratio = [c / p for c, p in zip(changed, plain, strict=True)]
        right.plot(pairs, ratio, color=colour, ls=dash, lw=1.5, label=f"{TRAINED * grown:,} tokens")
    left.set(ylabel="frequency, share of the unscaled one", title=f"By {FACTOR:g}, trained at {TRAINED}", yscale="log")
    right.set(title="dynamic_ntk (factor 1) at four lengths")
    for axis in (left, right):
        axis.axhline(1 / FACTOR, color=FAINT, lw=0.8, ls=":", zorder=0)
        axis.set(xlabel="pair of channels (fast to slow)", yticks=[1, 1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64])
        axis.set_yticklabels(["1", "1/2", "1/4", "1/8", "1/16", "1/32", "1/64"])
        axis.minorticks_off()
    right.legend(frameon=False, fontsize=8, loc="lower left")
    return titled(figure, [left, right], "RoPE scaling: which pairs are slowed down, and by how much", legend=left)


def partial() -> Any:
    figure, (axis,) = panels(1, width=8, height=3.6)
    zero = 2e-5
    for (label, scheme), colour, mark in zip(
        (
            ("all channels", RoPE()),
            ("half, neox: frequencies spread over the rotated half", RoPE(partial_rotary_factor=0.5)),
            ("half, proportional (p-RoPE): the fast ones kept", RoPE(partial_rotary_factor=0.5, rule="proportional")),
        ),
        COLOURS,
        ("o", "s", "^"),
        strict=False,
    ):
        frequencies = list(scheme.frequencies(64, 0))
        frequencies += [0.0] * (32 - len(frequencies))
        shift = {"o": 0, "s": -0.12, "^": 0.12}[mark]  # of decades, that marks at 0 lie beside each other
        shown = [f or zero * 10**shift for f in frequencies]
        axis.plot(range(32), shown, color=colour, marker=mark, ms=4, ls="", label=label, fillstyle="none")
    axis.set(yscale="log", ylim=(1e-5, 2), xlabel="pair of channels", ylabel="radians per token")
    axis.set(title="RoPE on part of a head, head_dim 64: pairs at 0 are not rotated and see content alone")
    axis.set_yticks([1, 0.1, 0.01, 0.001, zero])
    axis.set_yticklabels(["1", "0.1", "0.01", "0.001", "0"])
    axis.minorticks_off()
    return titled(figure, [axis], legend=axis)
