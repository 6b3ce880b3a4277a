"""Text in, training windows out: corpora, tokenizer, token shards, packing, the resumable loader; and tasks.

    prepared = prepare(cfg.data, cfg.tokenizer)                        # cached on disk; the second call does no work
    windows = Windows(prepared.train, cfg.data.seq_len, cfg.data.document_mask)
    for batch in BatchLoader(windows, cfg.data.batch_size, seed=0, num_batches=1000): ...

Importing this package is light: `datasets` and `tokenizers` are imported when they are first needed.
"""

from minillm.data.compression import xz_bits_per_byte
from minillm.data.loader import BatchLoader, UpdateLoader, ValLoader, val_batches
from minillm.data.prepare import Prepared, prepare
from minillm.data.shards import TokenShards
from minillm.data.tasks.data import TaskData, task_of
from minillm.data.tokenizer import Tokenizer, asked_vocab_size
from minillm.data.training_data import TrainingData, open_data
from minillm.data.windows import Windows, order

__all__ = [
    "BatchLoader",
    "Prepared",
    "TaskData",
    "TokenShards",
    "Tokenizer",
    "TrainingData",
    "UpdateLoader",
    "ValLoader",
    "Windows",
    "asked_vocab_size",
    "open_data",
    "order",
    "prepare",
    "task_of",
    "val_batches",
    "xz_bits_per_byte",
]
