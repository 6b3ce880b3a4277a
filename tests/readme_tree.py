"""The README's file tree, a line a file, written from the first sentence of each file's docstring.

After adding, moving or renaming a file, run

    python -m tests.readme_tree
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
START, END = "<!-- tree -->\n", "<!-- /tree -->"

FOLDERS = {
    "conf": "YAML, every key commented: model (the arms), block, size, data, tokenizer, optim, schedule, trainer, ...",
    "docs": "layer plans, position schemes with figures, every key, adding a scheme, known bugs, results",
    "benchmarks": "side by side measurements, each with dated result files",
    "tests": "mirrors minillm/",
}
WIDTH = 30
LONGEST = 100
"""A longer sentence is cut at its first colon, semicolon or bracket."""


def tree() -> str:
    """The fenced block."""
    lines = [_line(name, _summary(ROOT / name)) for name in ("train.py", "eval.py")]
    lines += [_line(f"{name}/", text) for name, text in FOLDERS.items()]
    package = ROOT / "minillm"
    lines.append(_line("minillm/", ""))
    lines += [
        _line(f"  {path.name}", _summary(path)) for path in sorted(package.glob("*.py")) if path.stem != "__init__"
    ]
    for folder in sorted(path.parent for path in package.glob("*/__init__.py")):
        if folder.name == "corpus":
            continue
        lines.append(_line(f"  {folder.name}/", _summary(folder / "__init__.py")))
        for path in sorted(folder.rglob("*.py")):
            if path.stem != "__init__":
                lines.append(_line(f"    {path.relative_to(folder)}", _summary(path)))
    return "```\n" + "\n".join(lines) + "\n```\n"


def _summary(path: Path) -> str:
    """The first sentence of the file's docstring, without markup."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(docstring.split("\n\n")[0].split()).replace("`", "")
    sentence = re.split(r"(?<!et al)\.(?: |$)", paragraph)[0].rstrip(".:")
    if len(sentence) > LONGEST:
        sentence = re.split(r"[:;(]", sentence)[0].rstrip()
    return sentence


def _line(name: str, text: str) -> str:
    return f"{name:<{WIDTH}} {text}".rstrip()


def with_tree(readme: str) -> str:
    """The README's text with its tree as the files are now."""
    before, rest = readme.split(START)
    _, after = rest.split(END)
    return before + START + tree() + END + after


if __name__ == "__main__":
    README.write_text(with_tree(README.read_text(encoding="utf-8")), encoding="utf-8")
