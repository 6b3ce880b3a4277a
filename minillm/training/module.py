"""The LightningModule: one batch is one update.

A batch from the loader is this rank's share of one optimiser update, so optimisation is manual: the share is cut into
`trainer.accumulate` micro-batches, and the gradient is that of

    sum of token losses over the global batch  /  number of its target tokens

whatever the number of micro-batches and ranks, and however padding falls among them. Then the global norm is clipped,
the guard looks, and the optimiser moves once at the schedule's rate. `step` counts these updates; Lightning's
`trainer.global_step` agrees with it.
"""

from __future__ import annotations

import math
import time
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor

from minillm.config.schema import Config, ModelConfig
from minillm.model.compiled import compile_blocks
from minillm.model.cost import cost
from minillm.model.decoder import Decoder, build_model
from minillm.training import ranks
from minillm.training.compilation import Compilation, decide, estimated_seconds
from minillm.training.guard import Guard
from minillm.training.optim import clip_gradients, make_optimizer
from minillm.training.pace import Pace
from minillm.training.parallel import build_sharded, gradients_shared
from minillm.training.peak import matmul_peak
from minillm.training.precision import Precision
from minillm.training.schedule import learning_rate
from minillm.training.signals import StopSignals
from minillm.training.state import restore_generators, restore_optimizer
from minillm.training.train_only import freeze

IGNORED = -100


class TrainingModule(pl.LightningModule):
    """Trains a Decoder. Callbacks read `step`, `point` and `stopping`; see `minillm.training.callbacks`."""

    decoder: Decoder

    def __init__(
        self,
        cfg: Config,
        model: ModelConfig,
        precision: Precision,
        signals: StopSignals,
        fixed: dict[str, Any],
        checkpoint: dict[str, Any] | None = None,
        updates: int = 0,
    ) -> None:
        """`model` has the tokenizer's vocabulary size; `fixed` goes into every checkpoint; `checkpoint` is resumed, and
        `updates` are left to `trainer.max_steps`, whatever part of them comes now."""
        super().__init__()
        self.automatic_optimization = False
        self.cfg = cfg
        self.model_config = model
        self.precision = precision
        self.updates_left = updates
        self.compilation = Compilation(False, "not decided")
        self.peak = math.nan
        """FLOP/s of matrix products on all devices together; both are found when the processes know each other."""
        self.signals = signals
        self.fixed = fixed
        self.guard = Guard(cfg.trainer.loss_spike)
        self.step = 0
        self.tokens = 0
        self.point: dict[str, float] = {}
        """What was measured at `step`; metric names are those of metrics.jsonl."""
        self.stopping = 0
        """Number of the signal that all ranks agreed to stop for, 0 for none."""
        self.unfinished = False
        """A signal came before this step's validation was done: it is repeated when the run goes on."""
        self.resumed_unfinished = False
        """The checkpoint that this part of the run began from was `unfinished`."""
        self.pace = Pace()
        """What the updates of this process cost."""
        self._ended: float | None = None
        self._seconds_before = 0.0
        self._started = time.monotonic()
        self._flops: dict[int, float] = {}
        self._checkpoint = checkpoint
        self._compiled_before: bool | None = None
        if checkpoint is not None:
            self.step, self.tokens = checkpoint["step"], checkpoint["tokens"]
            self.point, self.unfinished = dict(checkpoint["point"]), checkpoint["unfinished"]
            self.resumed_unfinished = self.unfinished
            self.guard.mean = checkpoint["loss_mean"]
            self._compiled_before = checkpoint["decided"].get("compile")  # nothing is decided at step 0
            self._seconds_before = checkpoint["seconds"]

    def seconds(self) -> float:
        """Time this run has taken so far, over all its parts."""
        return self._seconds_before + time.monotonic() - self._started

    def configure_model(self) -> None:
        """Called by Lightning when the processes know each other. Weights come from the checkpoint or the seed."""
        if hasattr(self, "decoder"):
            return
        weights = self._checkpoint["state_dict"] if self._checkpoint is not None else None
        if self.device_mesh is not None:
            mesh = self.device_mesh["data_parallel"]
            self.decoder = build_sharded(self.model_config, self.cfg.seed, mesh, weights, self.cfg.train_only)
        else:
            self.decoder = build_model(self.model_config, seed=self.cfg.seed)
            freeze(self.decoder, self.cfg.train_only)
            if weights is not None:
                self.decoder.load_state_dict(weights)
        self._measure_and_decide()
        if self.compilation.on:
            compile_blocks(self.decoder)

    def _measure_and_decide(self) -> None:
        """The devices' peak, and whether blocks are compiled: the same on every rank."""
        device, data = self.trainer.strategy.root_device, self.cfg.data
        (self.peak,) = ranks.total([matmul_peak(device.type, self.precision.dtype)], device)
        flops = self.updates_left * data.batch_size * data.seq_len * self.flops_per_token(data.seq_len)
        seconds = estimated_seconds(flops, self.peak, device.type)
        decided = self.fixed["decided"]
        self.compilation = decide(self.cfg.trainer.compile, device.type, seconds, self._compiled_before)
        decided |= {"compile": self.compilation.on, "compile_reason": self.compilation.why}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        optimizer = make_optimizer(self.decoder, self.cfg.optim)
        if self._checkpoint is not None:
            if self.step > 0:  # a run that begins with given weights has no moments yet, and its own seed
                restore_optimizer(self.decoder, optimizer, self._checkpoint["optimizer"])
                restore_generators(self._checkpoint["rng"])
            self._checkpoint = None  # the file's content is not needed twice
        return optimizer

    def on_train_start(self) -> None:
        self.signals.install()  # over Lightning's, which were set since
        # Lightning counts from 0 in each process; its loggers and other people's callbacks read this.
        progress = self.trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress
        progress.total.ready = progress.total.completed = self.step

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        """One update from this rank's share of its batch: tokens, targets, document_ids, each (rows, T) int64.

        Raises:
            TrainingDiverged: before anything moves, see `minillm.training.guard`.
        """
        started = time.monotonic()
        waited = 0.0 if self._ended is None else started - self._ended
        optimizer = self.optimizers()
        assert isinstance(optimizer, torch.optim.Optimizer)
        rate = learning_rate(self.step, self.cfg.optim.lr, self.cfg.schedule, self.cfg.trainer.max_steps)
        for group in optimizer.param_groups:
            group["lr"] = rate

        (count,) = ranks.total([float((batch["targets"] != IGNORED).sum())], self.device)
        micro_batches = self.micro_batches(batch)
        nats = torch.zeros((), dtype=torch.float64, device=self.device)
        for number, (tokens, targets, documents) in enumerate(micro_batches, start=1):
            with gradients_shared(self.trainer.strategy, self.decoder, share=number == len(micro_batches)):
                loss = self.loss_sum(tokens, targets, documents)
                # Strategies average gradients over ranks; times their number, that is the sum.
                self.manual_backward(loss * (ranks.world_size() / count))
            nats += loss.detach()
        grad_norm = clip_gradients(self.decoder.parameters(), self.cfg.optim.grad_clip)
        # The stop signal reaches ranks at different moments: they agree on it here, once per update.
        loss_total, *signals = ranks.total([float(nats), *self._signal_flags()], self.device)
        self.guard.check(self.step + 1, loss_total / count, grad_norm)
        optimizer.step()
        optimizer.zero_grad()

        self.step += 1
        self.tokens += int(count)
        self.stopping = self._agreed(signals)
        self.point = {
            "step": self.step,
            "tokens": self.tokens,
            "train/loss": loss_total / count,
            "train/lr": rate,
            "train/grad_norm": grad_norm,
        }
        rows = batch["tokens"]
        flops = rows.numel() * ranks.world_size() * self.flops_per_token(rows.shape[1])
        self.pace = self.pace.plus(Pace(time.monotonic() - started, waited, int(count), flops))

    def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
        """After the callbacks: from here to the next step, the loader is waited for."""
        self._ended = time.monotonic()

    def flops_per_token(self, length: int) -> float:
        """Of training on rows of `length` tokens, each counted as one document."""
        if length not in self._flops:
            self._flops[length] = cost(self.model_config, length).flops_per_token
        return self._flops[length]

    def micro_batches(self, batch: dict[str, Tensor]) -> list[tuple[Tensor, ...]]:
        """The rows of a batch in `trainer.accumulate` equal parts: (tokens, targets, documents), on our device."""
        keys = ("tokens", "targets", "document_ids")
        parts = (batch[key].to(self.device).chunk(self.cfg.trainer.accumulate) for key in keys)
        return list(zip(*parts, strict=True))

    def loss_sum(self, tokens: Tensor, targets: Tensor, documents: Tensor) -> Tensor:
        """Sum of token losses in nats, () float32. Ids are (rows, T); document -1 is padding, target -100 no target."""
        # Masks cost time, and most batches lie within one document per row.
        one_document = bool((documents == documents[:, :1]).all()) and bool((documents[:, 0] >= 0).all())
        with self.precision.autocast():
            return self.decoder.loss(tokens, targets, document_ids=None if one_document else documents, reduction="sum")

    def agree_to_stop(self) -> bool:
        """Ask all ranks, between updates, whether a signal has come; a collective."""
        self.stopping = self.stopping or self._agreed(ranks.total(self._signal_flags(), self.device))
        return bool(self.stopping)

    def _signal_flags(self) -> list[float]:
        return [float(self.signals.received == number) for number in self.signals.numbers]

    def _agreed(self, counts: list[float]) -> int:
        return next((n for n, count in zip(self.signals.numbers, counts, strict=True) if count), 0)
