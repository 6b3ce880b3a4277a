"""The whole configuration, typed and frozen. Field docs here are the configuration reference (`docs/`).

Names follow Hugging Face where it has one. Only what is listed here exists: unknown keys are errors.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from minillm.config.layers import LayerSpec
from minillm.position.base import EmbeddingScheme

Backend = Literal["auto", "reference", "sdpa", "banded", "flex", "varlen"]


@dataclass(frozen=True)
class BlockConfig:
    """The block around attention (`conf/block/`): norms, MLP, scales, initialisation."""

    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    norm_eps: float = 1e-6
    norm_bias: bool = False
    """A bias in layernorm; rmsnorm has none."""
    norm_unit_offset: bool = False
    """Weights stored as w and applied as 1 + w (Gemma)."""
    norm_placement: Literal["pre", "post", "branch_post", "sandwich", "parallel", "parallel_split"] = "pre"
    """pre x+f(Nx); post N(x+f(x)); branch_post x+N(f(x)); sandwich x+N(f(Nx)); parallel x+attn(Nx)+mlp(Nx);
    parallel_split x+attn(Nx)+mlp(Mx), each branch with a norm of its own (GPT-NeoX)."""
    mlp: Literal["swiglu", "geglu", "gelu", "gelu_erf"] = "swiglu"
    """gelu and geglu use the tanh form, as GPT-2 and Gemma do; gelu_erf the exact one, as GPT-NeoX and MPT do."""
    mlp_bias: bool = False
    attention_bias: bool = False
    """Bias of the output projection; q, k and v have the layer field `qkv_bias`, of which this is the default."""
    tie_word_embeddings: bool = True
    embedding_scale: float | Literal["sqrt_hidden"] | None = None
    embedding_norm: bool = False
    """A norm right after the embeddings (BLOOM)."""
    residual_scale: float | None = None
    """Multiplies what each branch adds to the residual stream (Granite)."""
    logit_scale: float | None = None
    final_logit_softcapping: float | None = None
    initializer_range: float | None = None
    """Standard deviation of initial matrices; null is 0.5 / sqrt(hidden_size), which keeps small widths learning."""
    depth_scaled_init: bool = True
    """Output projections of both branches start smaller by sqrt(2 * num_hidden_layers) (GPT-2)."""


@dataclass(frozen=True)
class SizeConfig:
    """Width, depth, lengths (`conf/size/`)."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    seq_len: int
    """Training length in tokens; data.seq_len reads it."""
    window: int
    """What the arms' sliding windows read: `${size.window}`."""


@dataclass(frozen=True)
class ModelConfig:
    """All a Decoder is built from. `layers` is the plan; nothing else says what a layer does."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    max_position_embeddings: int
    """Training length: the size of a learned position table, and the unit of length evaluations."""
    layers: tuple[LayerSpec, ...]
    block: BlockConfig = field(default_factory=BlockConfig)
    embedding_position: EmbeddingScheme | None = None
    backend: Backend = "auto"

    @property
    def initializer_range(self) -> float:
        """Standard deviation of initial matrices."""
        given = self.block.initializer_range
        return 0.5 * self.hidden_size**-0.5 if given is None else given


@dataclass(frozen=True)
class DataConfig:
    """Which text, cut how (`conf/data/`)."""

    source: Literal["embedded", "files", "hub", "task"]
    seq_len: int
    batch_size: int
    """Sequences per update, over all ranks and micro-batches."""
    path: str | None = None
    """source=files: a file or folder of .txt, .md, .jsonl(.xz|.gz) or .parquet."""
    hub_name: str | None = None
    """source=hub: a dataset name for `datasets.load_dataset`."""
    hub_config: str | None = None
    hub_split: str = "train"
    text_field: str = "text"
    """Field that holds the text, in jsonl, parquet and hub data."""
    held_out: int | float | None = None
    """Documents kept for validation: a count, or a share of the documents (at least one).
    source=embedded: null, its eight are fixed. source=task: how many samples a validation reads."""
    task: dict[str, Any] | None = None
    """source=task: {name: needle, ...} with the task's own fields; see `minillm.data.tasks`."""
    document_mask: bool = True
    """Packed documents do not see each other."""
    num_workers: int = 0
    cache_dir: str = "data_cache"
    """Token shards and tokenizers, shared by all runs."""


@dataclass(frozen=True)
class TokenizerConfig:
    """Byte-level BPE (`conf/tokenizer/`): trained on the training documents, or loaded."""

    source: Literal["train", "file", "task", "init_from"]
    """task: the words of data.task. init_from is what a run that begins with given weights writes here: their own,
    kept as its tokenizer.json."""
    vocab_size: int | None = None
    """source=train: the asked size; what the corpus gives may be smaller, which is reported and used.
    source=file, task or init_from: null, the file or the task decides."""
    path: str | None = None
    """source=file: a tokenizer.json."""
    bos_token: str | None = None
    """The special token that begins each document, and so ends the one before. null: `<|endoftext|>`, or what the
    file itself puts before a text."""


@dataclass(frozen=True)
class OptimConfig:
    name: Literal["adamw"]
    lr: float
    weight_decay: float = 0.1
    """On matrices only; norms, biases and embeddings' 1-D friends get none."""
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    grad_clip: float | None = 1.0
    """Clip the global gradient norm; null turns it off."""


@dataclass(frozen=True)
class ScheduleConfig:
    name: Literal["wsd", "cosine", "constant"]
    warmup_steps: int
    decay_fraction: float = 0.2
    """wsd: last share of max_steps over which lr falls."""
    min_lr_ratio: float = 0.1


@dataclass(frozen=True)
class TrainerConfig:
    max_steps: int
    """Horizon of the schedule, in updates."""
    stop_at_step: int | None = None
    """Stop earlier, with a checkpoint; the same command without it goes on."""
    strategy: Literal["auto", "ddp", "fsdp"] = "auto"
    devices: int = 1
    num_nodes: int = 1
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    compile: bool | Literal["auto"] = "auto"
    """Blocks under torch.compile; auto where the run is long enough to pay for it."""
    accumulate: int = 1
    """Micro-batches per update; data.batch_size is divided by it."""
    val_every: int = 100
    val_batches: int | None = None
    """Sequences batches per validation; null is the whole held-out set."""
    checkpoint_every: int = 100
    keep_checkpoints: int | None = 2
    """step-N.ckpt files kept beside last.ckpt; null keeps all."""
    log_every: int = 1
    sample_every: int | None = 200
    sample_prompt: str | None = None
    """null: "The ", or a held-out problem of a task."""
    sample_tokens: int = 64
    loss_spike: float | None = 3.0
    """Stop when the loss exceeds its running mean by this many nats; null only stops at NaN."""
    progress_bar: bool = True
    num_threads: int | None = None


@dataclass(frozen=True)
class LoggerConfig:
    name: Literal["none", "wandb", "tensorboard", "csv"]
    project: str = "minillm"
    entity: str | None = None
    group: str | None = None
    tags: tuple[str, ...] = ()
    mode: Literal["auto", "online", "offline", "disabled"] = "auto"
    """wandb: auto is online with an API key, else offline."""


@dataclass(frozen=True)
class LengthProbeConfig:
    """Loss or accuracy past the training length, at intervals of the training (`conf/callbacks/length_probe.yaml`)."""

    every: int
    """Updates between probes; there is one at the end too."""
    lengths: tuple[int, ...] = (1, 2, 4, 8)
    """Rising multiples of the training length, from 1."""
    samples: int = 4
    """Held-out documents, or validation samples of a task, at each length."""


@dataclass(frozen=True)
class CallbacksConfig:
    """What is measured during training besides the held-out loss (`conf/callbacks/`)."""

    length_probe: LengthProbeConfig | None = None
    """Loss or accuracy past the training length, at intervals; null for none."""


@dataclass(frozen=True)
class Config:
    """One run. `plain` is the resolved mapping it was built from: what config.yaml and checkpoints hold."""

    model: ModelConfig
    size: SizeConfig
    data: DataConfig
    tokenizer: TokenizerConfig
    optim: OptimConfig
    schedule: ScheduleConfig
    trainer: TrainerConfig
    logger: LoggerConfig
    callbacks: CallbacksConfig
    seed: int
    name: str | None
    """Readable part of the run folder's name; null is <model>-<size>-<data>."""
    run_dir: str | None
    """The whole run folder, instead of outputs/<name>-s<seed>-<hash>."""
    output_dir: str
    resume: Literal["auto", "never", "must", "force"]
    init_from: str | None
    """Weights to begin with, under this plan or another: a run folder, a checkpoint file or a Hugging Face folder."""
    init_from_allow: tuple[Literal["interpolate", "crop", "block"], ...]
    """What may differ from those weights' model: interpolate or crop a learned position table, other block settings."""
    init_from_fingerprint: str | None
    """What the weights and their tokenizer are, whatever the path; filled in, or given to insist on exactly these."""
    train_only: tuple[str, ...] | None
    """Globs over parameter names; all other parameters keep their values. null trains all."""
    dry_run: bool
    eval_at_end: bool
    """Print loss against length, 1x to 16x the training length, when the run is complete."""
    choices: dict[str, str]
    """Chosen option of each config group: {"model": "rnope_swa", "size": "micro", ...}."""
    warnings: tuple[str, ...]
    plain: dict[str, Any]
