"""`python eval.py` and the command `minillm-eval`: measure finished runs, write one comparison.

Exit codes: 0 done, 2 something the user can mend (one paragraph says what; runs that could be evaluated are in the
comparison all the same), 1 a bug, 130 after Ctrl-C. What was measured is kept, so the same command goes on.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from minillm.errors import MinillmError

HELP = """Measure finished runs and write one comparison.

  python eval.py runs='[outputs/a,outputs/b]'                   both runs, all suites, into outputs/comparison
  python eval.py runs='outputs/*' out=outputs/report            every run folder that the pattern matches
  python eval.py runs=outputs/a suites='[length_perplexity]' suite.length_perplexity.lengths='[1,2,4]'
  python eval.py runs=outputs/a '+variants.log_n.global.temperature={type: log_n, base: 256}'   the same weights twice

Each run keeps its own eval/<suite>.json, which is reused while settings and weights are the same (again=true measures
anew). The comparison is report.html, report.md, table.csv and figures/ in the folder out; where an arm has several
seeds, also seeds.csv, with means over them.

Keys and their defaults:
"""


def main() -> None:
    """Run the program on sys.argv; ends the process with the exit codes above."""
    sys.exit(program(sys.argv[1:]))


def program(arguments: Sequence[str]) -> int:
    """Carry out ``eval.py ARGUMENTS`` and return its exit code."""
    if any(a in ("-h", "--help", "help") for a in arguments):
        print(HELP + _keys())
        return 0
    try:
        return _evaluate_all(arguments)
    except MinillmError as error:
        print(f"Error: {error}", file=sys.stderr, flush=True)
        return 2
    except KeyboardInterrupt:
        print("Interrupted. What was measured is kept; the same command goes on from there.", file=sys.stderr)
        return 130


def _evaluate_all(arguments: Sequence[str]) -> int:
    # Imported late: --help and errors in the command line need no torch.
    from minillm.evaluation.settings import compose_eval

    for argument in arguments:
        if argument.startswith("-"):
            raise MinillmError(f"{argument}: eval.py takes key=value only, and --help.")
    config = compose_eval(arguments)

    import torch

    from minillm.evaluation.evaluate import choose_device, evaluate
    from minillm.evaluation.runs import find_runs, with_variants
    from minillm.report import write_report

    choose_device(config.device)
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    runs = with_variants(find_runs(config.runs, say=_note), list(config.variants))
    evaluations, failures = [], []
    for run in runs:
        try:
            evaluations.append(evaluate(run, config, say=_note))
        except MinillmError as error:
            _note(f"{run.name}: not evaluated: {error}")
            failures.append(f"{run.name}: {error}")
    if not evaluations:
        raise MinillmError(f"No run could be evaluated. {' '.join(failures)}")
    written = write_report(evaluations, Path(config.out), command=shlex.join(["python", "eval.py", *arguments]))
    print(written.summary)
    print(f"report   {written.page}")
    for note in written.notes:
        _note(note)
    if failures:
        raise MinillmError(f"Not evaluated, and not in the report: {' '.join(failures)}")
    return 0


def _keys() -> str:
    """The root and the suites' files, as they stand: every key is commented there."""
    from minillm.config.paths import conf_dir
    from minillm.evaluation.settings import SUITES

    parts = []
    for name in ("eval.yaml", *(f"suite/{suite}.yaml" for suite in SUITES)):
        lines = (conf_dir() / name).read_text(encoding="utf-8").rstrip().splitlines()
        if name == "eval.yaml":  # without the defaults list and the comment that repeats this help
            lines = [line for line in lines[lines.index("  - _self_") + 1 :] if line]
        else:
            key = f"suite.{Path(name).stem}."
            lines = ["", *(line if line.startswith("#") else f"{key}{line}" for line in lines)]
        parts += [f"  {line}" for line in lines]
    return "\n".join(parts)


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
