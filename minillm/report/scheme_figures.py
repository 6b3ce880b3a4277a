"""Figures of the position schemes, masks and temperatures, for docs/: `python -m minillm.report.scheme_figures OUT`.

All that is drawn comes from the code that models use (`scheme_numbers`). The files are SVG, the same from run to run.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from minillm.attention.mask import visible
from minillm.attention.tokens import arrange
from minillm.config.layers import MaskKey
from minillm.position.alibi import ALiBi, alibi_slopes
from minillm.position.base import EmbeddingScheme, LayerShape, PositionScheme
from minillm.position.binary import Binary
from minillm.position.deberta import DeBERTa
from minillm.position.shaw import Shaw
from minillm.position.sinusoidal import Sinusoidal
from minillm.position.t5 import T5
from minillm.position.temperature import Llama4, LogN, Ministral, TemperatureScheme, Uniform
from minillm.position.temperature_learned import SSMax
from minillm.report.rope_figures import decay, partial, scaling, wavelengths
from minillm.report.scheme_numbers import alibi_fade, bias_weight, table_row
from minillm.report.style import COLOURS, FAINT, INK, panels, titled


def draw(folder: Path, names: Iterable[str] = ()) -> list[Path]:
    """Draw the figures `names` into `folder`, or all. Raises ImportError without matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    # Without a fixed salt and date the same figure would be another file at every run.
    with matplotlib.rc_context({"svg.hashsalt": "minillm", "svg.fonttype": "path"}):
        for name in names or FIGURES:
            files.append(folder / name)
            FIGURES[name]().savefig(files[-1], metadata={"Date": None}, facecolor="white")
    return files


def _binary() -> Any:
    figure, (axis,) = panels(1, width=7, height=2.6)
    _map(axis, figure, Binary(bits=8), width=8, length=128, colours="Greys", ticks=[0, 1])
    axis.set(title="Binary: channel i is bit i of the position, so it flips every 2^i tokens")
    return titled(figure, [axis])


def _sinusoidal() -> Any:
    figure, axes = panels(2, width=10, share_y=False, height=3.4)
    _map(axes[0], figure, Sinusoidal(), width=64, length=256, colours="RdBu", ticks=[-1, 0, 1])
    axes[0].set(title="Sinusoidal, width 64: sine on even, cosine on odd channels")
    table = Sinusoidal().make_embedding(64, 256)(torch.arange(256)[None])[0]
    product = table @ table.t() / 32
    for colour, dash, at in zip(COLOURS, ("-", "--", ":"), (40, 128, 200), strict=False):
        axes[1].plot(range(256), product[at].tolist(), color=colour, ls=dash, lw=1.4, label=f"position {at}")
    axes[1].set(
        ylim=(0, 1.15),
        title="Inner product of two positions: distance alone counts",
        xlabel="position",
        ylabel="inner product (1: equal)",
    )
    axes[1].legend(frameon=False, fontsize=8, loc="upper center", ncols=3)
    return titled(figure, axes)


def _map(axis: Any, figure: Any, scheme: EmbeddingScheme, width: int, length: int, colours: str, ticks: Any) -> None:
    """Position to the right, channel upwards."""
    table = scheme.make_embedding(width, length)(torch.arange(length)[None])[0]
    extent = (-0.5, length - 0.5, -0.5, width - 0.5)
    picture = axis.imshow(
        table.t().numpy(), origin="lower", aspect="auto", interpolation="none", cmap=colours, extent=extent
    )
    axis.grid(False)
    axis.set(xlabel="position", ylabel="channel")
    bar = figure.colorbar(picture, ax=axis, ticks=ticks, pad=0.01, fraction=0.05)
    bar.ax.tick_params(labelsize=8)


def _alibi() -> Any:
    from matplotlib.ticker import FuncFormatter

    figure, (axis,) = panels(1, width=8, height=4.2)
    distance = torch.unique(torch.logspace(0, math.log10(4096), 160).round().long())
    slopes, faded = alibi_slopes(8).tolist(), alibi_fade(8)
    for head, weight in enumerate(bias_weight(ALiBi(), 8, distance)):
        colour, dash = COLOURS[head], "-" if head % 2 == 0 else "--"
        seen = weight > 1e-4
        label = f"head {head}: slope 1/{1 / slopes[head]:g}"
        axis.plot(distance[seen].tolist(), (100 * weight[seen]).tolist(), color=colour, lw=1.4, ls=dash, label=label)
        axis.plot(faded[head], 1, "o", color=colour, ms=5, zorder=3)
        axis.annotate(
            f"{faded[head]}", (faded[head], 1), xytext=(4, 3), textcoords="offset points", fontsize=8, color=INK
        )
    axis.axhline(1, color=FAINT, lw=0.8, ls=":")
    axis.set(
        xscale="log",
        yscale="log",
        xlabel="distance (tokens, logarithmic)",
        ylabel="weight exp(-slope * distance), %",
        ylim=(0.1, 120),
        xlim=(1, 4096),
        title="ALiBi, 8 heads: each dot is the distance at which a head's weight has fallen to 1 %",
    )
    for side in (axis.xaxis, axis.yaxis):
        side.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    axis.minorticks_off()
    return titled(figure, [axis], legend=axis)


def _tables() -> Any:
    figure, (left, right) = panels(2, width=10, share_y=False)
    near = torch.arange(0, 161)
    rows = table_row(T5(), near, 32)
    left.step(near.tolist(), rows.tolist(), where="post", color=COLOURS[0], lw=1.4)
    left.axvline(128, color=FAINT, ls=":", lw=1)
    left.annotate("max_distance", (128, 2), xytext=(3, 0), textcoords="offset points", fontsize=8, color=INK)
    left.annotate(
        "one bucket per distance up to here", (15, 15), xytext=(30, 8), fontsize=8, color=INK,
        arrowprops={"arrowstyle": "-", "color": FAINT},
    )  # fmt: skip
    left.set(title="T5: 32 buckets up to 128", xlabel="distance (tokens)", ylabel="bucket", ylim=(0, 33))
    far = torch.arange(0, 1025)
    deberta_v2 = DeBERTa(terms=("c2p",), max_distance=512, position_buckets=128)
    schemes: tuple[tuple[PositionScheme, int, str, str, str], ...] = (
        (T5(), 32, "t5: 32 buckets up to 128", COLOURS[0], "-"),
        (Shaw(), 17, "shaw: max_distance 16", COLOURS[1], "--"),
        (DeBERTa(terms=("c2p",)), 128, "deberta: max_distance 128", COLOURS[2], "-."),
        (deberta_v2, 128, "deberta: 128 buckets up to 512", COLOURS[3], ":"),
    )
    for scheme, count, label, colour, dash in schemes:
        right.plot(far.tolist(), table_row(scheme, far, count).tolist(), color=colour, ls=dash, lw=1.6, label=label)
    right.set(title="Row of its table that a scheme reads", xlabel="distance (tokens)", ylabel="row", xlim=(0, 700))
    right.legend(frameon=False, fontsize=8, loc="center right")
    return titled(figure, [left, right], "Learned tables: from some distance on all tokens share the last row")


def _masks() -> Any:
    figure, axes = panels(5, width=11, height=3.0)
    length = 16
    documents = torch.tensor([[0] * 5 + [1] * 7 + [2] * 4])
    cases = (
        ("full", MaskKey(), None),
        ("window: 5", MaskKey(window=5), None),
        ("chunk: 5", MaskKey(chunk=5), None),
        ("window: 5, sink_tokens: 2", MaskKey(window=5, sink_tokens=2), None),
        ("full, three documents", MaskKey(), documents),
    )
    for axis, (title, key, ids) in zip(axes, cases, strict=True):
        tokens = arrange(1, length, "cpu", document_ids=ids)
        seen = visible(key, tokens, tokens)[0].numpy()
        axis.imshow(seen, cmap="Blues", vmin=0, vmax=1.4, interpolation="none")
        edges = [i - 0.5 for i in range(1, length)]
        axis.hlines(edges, -0.5, length - 0.5, colors="white", lw=0.6)
        axis.vlines(edges, -0.5, length - 0.5, colors="white", lw=0.6)
        axis.set(title=title, xlabel="key", xticks=[0, 5, 10, 15], yticks=[0, 5, 10, 15])
        axis.grid(False)
    axes[0].set(ylabel="query")
    return titled(figure, list(axes), "What a query (row) may see: coloured keys")


def _temperatures() -> Any:
    from matplotlib.ticker import FuncFormatter

    figure, (axis,) = panels(1, width=8, height=4.0)
    position = torch.unique(torch.logspace(0, 17, 400, base=2).round().long())
    cases: tuple[tuple[TemperatureScheme, str], ...] = (
        (Llama4(), "llama4: scale 0.1, floor 8192"),
        (Ministral(), "ministral: scale 0.1, floor 16384"),
        (LogN(), "log_n: base 362"),
        (SSMax(), "ssmax at its start: 0.168 ln(n)"),
        (Uniform(scale=1.5), "uniform: scale 1.5"),
    )
    for (scheme, label), colour, dash in zip(cases, COLOURS, ("-", "--", "-.", ":", (0, (6, 2))), strict=False):
        with torch.no_grad():
            factor = scheme.make(LayerShape(0, 1, 1, 2))(position[None])[0, 0, :, 0]
        factor = factor.expand(len(position))
        axis.plot(position.tolist(), factor.tolist(), color=colour, ls=dash, lw=1.5, label=label)
    axis.set(
        xscale="log",
        xlabel="position in the document (logarithmic)",
        ylabel="factor on the query",
        ylim=(0, 2.1),
        title="Query temperatures: what multiplies a query, and so its scores, at each position",
    )
    axis.set_xscale("log", base=2)
    axis.set_xticks([2**k for k in range(0, 18, 2)])
    axis.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    axis.legend(frameon=False, fontsize=8, loc="lower right")
    return titled(figure, [axis])


FIGURES: dict[str, Callable[[], Any]] = {
    "binary.svg": _binary,
    "sinusoidal.svg": _sinusoidal,
    "rope_decay.svg": decay,
    "rope_wavelengths.svg": wavelengths,
    "rope_scaling.svg": scaling,
    "rope_partial.svg": partial,
    "alibi.svg": _alibi,
    "distance_tables.svg": _tables,
    "masks.svg": _masks,
    "temperatures.svg": _temperatures,
}
"""File name -> what draws it."""


if __name__ == "__main__":
    for path in draw(Path(sys.argv[1])):
        print(path)
