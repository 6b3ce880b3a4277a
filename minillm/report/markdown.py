"""A report as Markdown."""

from __future__ import annotations

from minillm.report.blocks import Block, Bullets, Commands, Figure, Heading, Report, Strip, Table, Warnings
from minillm.report.strip import SHORT, as_text


def render(report: Report) -> str:
    """The whole report; figures are linked as files beside it."""
    return "\n\n".join([f"# {escape(report.title)}", *(_block(b) for b in report.blocks)]) + "\n"


def escape(text: str) -> str:
    """Text that Markdown and the HTML in it would otherwise read as markup."""
    for character in "\\`*_[]<>|":
        text = text.replace(character, f"\\{character}")
    return text


def _block(block: Block) -> str:
    if isinstance(block, Heading):
        return f"## {escape(block.text)}"
    if isinstance(block, Bullets):
        return "\n".join(f"- {escape(item)}" for item in block.items)
    if isinstance(block, Warnings):
        return "\n".join(f"> **Note:** {escape(item)}  " for item in block.items)
    if isinstance(block, Commands):
        return _code(block.lines)
    if isinstance(block, Figure):
        return f"![{escape(block.caption)}](figures/{block.file})\n\n{escape(block.caption)}"
    if isinstance(block, Strip):
        letters = {text.partition(",")[0]: None for _, _, text in block.legend}
        legend = ", ".join(f"{SHORT.get(scheme, scheme[:1].upper())} {scheme}" for scheme in letters)
        return (
            f"{_code(as_text(block).splitlines())}\n\nOne column a layer, first layer left. The letter says how "
            f"position enters ({escape(legend)}), the number how many tokens the layer sees; without one it sees all."
        )
    return _table(block)


def _code(lines: list[str]) -> str:
    # A fence longer than any run of backticks inside cannot be closed by what a name holds.
    fence = "```"
    while any(fence in line for line in lines):
        fence += "`"
    return "\n".join([fence, *lines, fence])


def _table(table: Table) -> str:
    marks = [":--" if i in table.text_columns else "--:" for i in range(len(table.header))]
    lines = [table.header, *table.rows]
    body = ["| " + " | ".join(escape(cell) for cell in line) + " |" for line in lines]
    return f"{escape(table.caption)}\n\n" + "\n".join([body[0], "|" + "|".join(marks) + "|", *body[1:]])
