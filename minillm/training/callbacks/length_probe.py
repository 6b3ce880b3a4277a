"""Loss or accuracy past the training length while a run is trained: `callbacks=length_probe`.

What eval.py measures at the end, in a cheap form at intervals: on text the loss of the same target tokens under growing
context, on a task its token accuracy and exact match. `length/nll@512`, `length/exact@192` and so on stand in
metrics.jsonl and on the dashboard. It changes nothing of the training: it draws no random number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
from torch.distributed.fsdp import FSDPModule

from minillm.config.schema import Config, LengthProbeConfig
from minillm.data.tasks.data import TaskData
from minillm.data.training_data import TrainingData
from minillm.errors import MinillmError
from minillm.evaluation import length_perplexity, recall
from minillm.evaluation.scoring import LanguageModel
from minillm.evaluation.settings import LengthPerplexitySettings, RecallSettings
from minillm.training import ranks
from minillm.training.callbacks.base import AfterUpdate, due
from minillm.training.module import TrainingModule
from minillm.training.parallel import whole

PREFIX = "length/"
Measure = Callable[[LanguageModel, str, str], list[dict[str, Any]]]
"""(model, device, precision) to rows of a suite, those of whole samples alone."""


class LengthProbe(AfterUpdate):
    """Adds `length/...` to the point every `settings.every` steps and at the end."""

    def __init__(self, settings: LengthProbeConfig, measure: Measure) -> None:
        self.settings, self.measure = settings, measure

    def act(self, trainer: pl.Trainer, module: TrainingModule) -> None:
        at_end = module.step >= module.cfg.trainer.max_steps
        if module.unfinished or not (due(module.step, self.settings.every) or at_end):
            return
        # Sharded weights are gathered by all ranks together; the others have nothing to do here.
        if ranks.rank() != 0 and not isinstance(module.decoder, FSDPModule):
            return
        module.decoder.eval()
        try:
            with whole(module.decoder):
                rows = self.measure(module.decoder, module.device.type, module.precision.name)
        finally:
            module.decoder.train()
        module.point.update(
            {f"{PREFIX}{r['metric']}@{r['length']}": r["value"] for r in rows if r["value"] is not None}
        )


def length_probe(cfg: Config, data: TrainingData) -> LengthProbe | None:
    """The callback that `cfg.callbacks` asks for.

    Raises:
        MinillmError: no held-out document is longer than the training length.
    """
    settings = cfg.callbacks.length_probe
    if settings is None:
        return None
    length = cfg.model.max_position_embeddings
    if isinstance(data, TaskData):
        return LengthProbe(settings, _task(settings, data, length))
    documents = [data.val.document(i) for i in range(len(data.val))]
    own = LengthPerplexitySettings(
        protocols=("same_target",), lengths=settings.lengths, max_documents=settings.samples, min_documents=1
    )
    plan = length_perplexity.Plan([len(d) for d in documents], length, own)
    if not plan.used:
        raise MinillmError(
            f"callbacks.length_probe: no held-out document is longer than {length} tokens. Leave it out, or hold out "
            "longer documents."
        )
    if plan.too_long:
        lengths = ", ".join(map(str, plan.too_long))
        ranks.say(f"length_probe: no held-out document is long enough for {lengths} tokens.")
    read = [documents[i] for i in plan.used]

    def measure(model: LanguageModel, device: str, precision: str) -> list[dict[str, Any]]:
        rows = length_perplexity.measure(model, read, length, own, device, precision)
        return [row for row in rows if row["metric"] == "nll"]

    return LengthProbe(settings, measure)


def _task(settings: LengthProbeConfig, data: TaskData, length: int) -> Measure:
    own = RecallSettings(lengths=settings.lengths, samples=settings.samples)

    def measure(model: LanguageModel, device: str, precision: str) -> list[dict[str, Any]]:
        # Not the test samples: those are for the end.
        rows = recall.measure(model, data.task, length, own, (), device, precision, split="val")
        return [row for row in rows if row["depth"] is None and row["metric"] != "nll"]

    return measure
