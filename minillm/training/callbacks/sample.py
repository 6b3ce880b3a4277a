"""A text sample at intervals: into samples.txt and above the progress bar."""

from __future__ import annotations

import re
from pathlib import Path

import lightning.pytorch as pl
from torch.distributed.fsdp import FSDPModule

from minillm.data.prompt import Prompt
from minillm.data.tokenizer import Tokenizer
from minillm.generation import generate
from minillm.training import ranks
from minillm.training.callbacks.base import AfterUpdate, append, due
from minillm.training.module import TrainingModule
from minillm.training.parallel import whole
from minillm.training.run_folder import write_atomically

TEMPERATURE = 0.8
HEADER = "=== step {} ==="
_HEADER = re.compile(r"^=== step (\d+) ===$", flags=re.MULTILINE)


class Samples(AfterUpdate):
    """Continues `prompt` every `sample_every` steps and at the end; the same seed each time."""

    def __init__(self, path: Path, tokenizer: Tokenizer, prompt: Prompt) -> None:
        self.path = path
        self.tokenizer = tokenizer
        self.prompt = prompt

    def act(self, trainer: pl.Trainer, module: TrainingModule) -> None:
        settings = module.cfg.trainer
        at_end = settings.sample_every is not None and module.step >= settings.max_steps
        if module.unfinished or not (due(module.step, settings.sample_every) or at_end):
            return
        # Sharded weights are gathered by all ranks together, so all of them generate, the same text.
        if ranks.rank() != 0 and not isinstance(module.decoder, FSDPModule):
            return
        text = self.sample(module)
        if ranks.rank() == 0:
            append(self.path, f"{HEADER.format(module.step)}\n{text}\n\n")
            ranks.say(f"step {module.step} sample: {text!r}")

    def sample(self, module: TrainingModule) -> str:
        """The prompt and its continuation, and beside a wrong one what is right."""
        prompt = self.prompt
        scheme, length = module.decoder.config.embedding_position, module.decoder.config.max_position_embeddings
        end = None if scheme is None else scheme.max_positions(length)
        new_tokens = prompt.new_tokens if end is None else min(prompt.new_tokens, end - len(prompt.ids))
        if new_tokens < 1:
            return f"{prompt.shown} (no room to go on: {scheme} ends at position {end})"
        with whole(module.decoder), module.precision.autocast():
            (new,) = generate(
                module.decoder,
                [prompt.ids],
                max_new_tokens=new_tokens,
                temperature=0.0 if prompt.greedy else TEMPERATURE,
                seed=module.cfg.seed,
            )
        text = self.tokenizer.decode(new)
        beside = "" if prompt.right in (None, text) else f" (right: {prompt.right})"
        return prompt.shown + text + beside


def keep_up_to(path: Path, step: int) -> None:
    """Drop the samples after `step`: a run that goes on from an earlier checkpoint makes them again."""
    if not path.exists():
        return
    text = path.read_text(encoding="utf-8", errors="replace")
    later = next((m.start() for m in _HEADER.finditer(text) if int(m.group(1)) > step), None)
    if later is not None:
        write_atomically(path, text[:later])
