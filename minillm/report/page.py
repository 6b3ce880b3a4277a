"""A report as one HTML file that needs nothing beside it: pictures and style are inside, every text is escaped."""

from __future__ import annotations

import base64
from html import escape
from pathlib import Path

from minillm.report.blocks import Block, Bullets, Commands, Figure, Heading, Report, Strip, Table, Warnings
from minillm.report.figures import DPI

CSS_DPI = 104
"""Slightly more than the 96 pixels of an inch, so that three panels fill the page."""
STYLE = """
:root { --ink: #1c1c1c; --soft: #5c5c5c; --line: #dcdcdc; --wash: #f6f6f4; }
body { font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
       color: var(--ink); background: #fff; max-width: 1080px; margin: 2.5rem auto 4rem; padding: 0 1.25rem; }
h1 { font-size: 1.65rem; line-height: 1.2; margin: 0 0 .4rem; }
h2 { font-size: 1.15rem; margin: 2.6rem 0 .7rem; padding-bottom: .25rem; border-bottom: 1px solid var(--line); }
p, li { max-width: 52rem; }
ul { padding-left: 1.2rem; } li { margin: .2rem 0; }
.soft, figcaption, caption { color: var(--soft); font-size: .86rem; }
.scroll { overflow-x: auto; margin: 1.1rem 0; }
table.data { border-collapse: collapse; font-size: .86rem; font-variant-numeric: tabular-nums; }
table.data caption { caption-side: top; text-align: left; padding-bottom: .35rem; max-width: 52rem; }
table.data caption { min-width: min(40rem, 92vw); } /* a narrow table would make it a column of single words */
table.data th { text-align: right; font-weight: 600; border-bottom: 1.5px solid var(--ink); padding: .3rem .7rem;
                vertical-align: bottom; }
table.data td { text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); padding: .28rem .7rem; }
table.data .text { text-align: left; } table.data td:first-child, table.data th:first-child { padding-left: 0; }
table.data td:first-child { font-weight: 600; }
figure { margin: 1.3rem 0; } figure img { max-width: 100%; height: auto; } figcaption { max-width: 52rem; }
.note { background: #fff6e0; border-left: 4px solid #d99a1c; padding: .55rem .9rem; margin: 1rem 0; }
.note p { margin: .2rem 0; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: var(--wash); border: 1px solid var(--line);
      padding: .8rem 1rem; font-size: .8rem; }
table.strip { border-collapse: separate; border-spacing: 2px 5px; font-size: .74rem; }
table.strip th { text-align: right; padding-right: .6rem; font-size: .86rem; white-space: nowrap; }
table.strip td { min-width: 1.7rem; height: 1.5rem; text-align: center; border-radius: 3px; color: #fff;
                 border: 2px solid; padding: 0 .2rem; white-space: nowrap; }
.legend span.box { display: inline-block; width: 1rem; height: .8rem; border: 2px solid; border-radius: 3px;
                   vertical-align: -1px; margin: 0 .35rem 0 1rem; }
"""


def render(report: Report, figures: Path) -> str:
    """The whole page; pictures are read from the folder `figures` and embedded."""
    body = "\n".join(_block(block, figures) for block in report.blocks)
    title = escape(report.title)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n{body}\n</body>\n</html>\n"
    )


def _block(block: Block, figures: Path) -> str:
    if isinstance(block, Heading):
        return f"<h2>{escape(block.text)}</h2>"
    if isinstance(block, Bullets):
        return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in block.items) + "</ul>"
    if isinstance(block, Warnings):
        return '<div class="note">' + "".join(f"<p>{escape(item)}</p>" for item in block.items) + "</div>"
    if isinstance(block, Commands):
        return f"<pre>{escape(chr(10).join(block.lines))}</pre>"
    if isinstance(block, Figure):
        return _figure(block, (figures / block.file).read_bytes())
    if isinstance(block, Strip):
        return _strip(block)
    return _table(block)


def _figure(figure: Figure, png: bytes) -> str:
    """Embedded, in the size at which it was drawn: stretched to the page, its text would be too large or too small."""
    width = int.from_bytes(png[16:20], "big")  # of the IHDR chunk, which comes first in every PNG
    caption = escape(figure.caption)
    data = base64.b64encode(png).decode()
    image = f'<img alt="{caption}" width="{width * CSS_DPI // DPI}" src="data:image/png;base64,{data}">'
    return f"<figure>{image}<figcaption>{caption}</figcaption></figure>"


def _table(table: Table) -> str:
    def line(cells: list[str], tag: str) -> str:
        shown = (
            f"<{tag}{' class=text' if i in table.text_columns else ''}>{escape(cell)}</{tag}>"
            for i, cell in enumerate(cells)
        )
        return f"<tr>{''.join(shown)}</tr>"

    body = "\n".join(line(row, "td") for row in table.rows)
    return (
        f'<div class="scroll"><table class="data"><caption>{escape(table.caption)}</caption>'
        f"<thead>{line(table.header, 'th')}</thead>\n<tbody>{body}</tbody></table></div>"
    )


def _strip(strip: Strip) -> str:
    rows = []
    for label, cells in strip.rows:
        drawn = "".join(
            f'<td style="{_fill(c.colour, c.local)}" title="{escape(c.title)}">{escape(c.text)}</td>' for c in cells
        )
        rows.append(f"<tr><th>{escape(label)}</th>{drawn}</tr>")
    legend = "".join(
        f'<span class="box" style="{_fill(colour, local)}"></span>{escape(text)}'
        for colour, local, text in strip.legend
    )
    return (
        f'<div class="scroll"><table class="strip">{"".join(rows)}</table></div>\n'
        f'<p class="soft legend">One cell a layer, first layer left; the number is how many tokens it sees.{legend}</p>'
    )


def _fill(colour: str, local: bool) -> str:
    """Full colour for full attention; a tint with a coloured edge where a layer sees a part only."""
    if local:
        return f"border-color:{escape(colour)};background:{escape(colour)}22;color:#1c1c1c"
    return f"border-color:{escape(colour)};background:{escape(colour)}"
