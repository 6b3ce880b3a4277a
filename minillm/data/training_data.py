"""What a run trains on: text that was prepared, or a task whose samples are made on the fly. Both have one face.

data = open_data(cfg.data, cfg.tokenizer)
train, val = data.train_loader(cfg.data, cfg.seed, num_batches=1000), data.val_loader(cfg.data)
"""

from __future__ import annotations

from minillm.config.schema import DataConfig, TokenizerConfig
from minillm.data.check import check
from minillm.data.prepare import Prepared, prepare
from minillm.data.tasks.data import TaskData, task_data
from minillm.data.tokenizer import Tokenizer

TrainingData = Prepared | TaskData


def open_data(data: DataConfig, tokenizer: TokenizerConfig, given: Tokenizer | None = None) -> TrainingData:
    """The data of a configuration; `given` and the errors are as for `prepare`."""
    if data.source == "task":
        check(data, tokenizer)
        return task_data(data, given)
    return prepare(data, tokenizer, given)
