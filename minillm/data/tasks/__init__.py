"""Tasks whose samples are made on the fly, a file per task: recall, copying, and length generalisation.

Every module in this folder is imported here, so a new task is one new file with a class under `register`.
"""

from __future__ import annotations

import importlib
import pkgutil

from minillm.data.tasks.base import BOS, TASKS, Answer, Sample, Split, Task, register, task_from_plain

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["BOS", "TASKS", "Answer", "Sample", "Split", "Task", "register", "task_from_plain"]
