"""What happens after an update, one concern a file, in this order:

    validation.py     held-out loss, at its steps and at the end
    metrics_file.py   the step's line in metrics.jsonl
    logger.py         the same to wandb, TensorBoard or CSV
    progress.py       the bar, or plain lines
    sample.py         a text sample
    checkpoint.py     the checkpoint, and the end of a run that was asked to stop

The checkpoint comes last, so what a step owes is either all done before it or, after a kill, all done again. Only a
signal during a long validation leaves work behind: the checkpoint then says `unfinished`, and the next start does the
step's remaining events before it goes on.
"""
