"""Train a model: ``python train.py model=rnope_swa size=micro``. ``--help`` explains; ``dry_run=true`` only looks."""

from minillm.training.program import main

if __name__ == "__main__":
    main()
