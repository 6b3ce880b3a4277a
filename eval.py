"""Evaluate finished runs and write one comparison: ``python eval.py runs='[outputs/a,outputs/b]'`` (see --help)."""

from minillm.evaluation.program import main

if __name__ == "__main__":
    main()
