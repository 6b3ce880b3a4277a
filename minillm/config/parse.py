"""A plain resolved mapping into `Config`: the one reader of YAML values, for a new run and for a saved one alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minillm.attention.backends import check as check_backend
from minillm.config import expand, fields
from minillm.config.schema import (
    BlockConfig,
    CallbacksConfig,
    Config,
    DataConfig,
    LengthProbeConfig,
    LoggerConfig,
    ModelConfig,
    OptimConfig,
    ScheduleConfig,
    SizeConfig,
    TokenizerConfig,
    TrainerConfig,
)
from minillm.errors import ConfigError, nearest

SECTIONS = {
    "size": SizeConfig,
    "data": DataConfig,
    "tokenizer": TokenizerConfig,
    "optim": OptimConfig,
    "schedule": ScheduleConfig,
    "trainer": TrainerConfig,
    "logger": LoggerConfig,
    "callbacks": CallbacksConfig,
}
SCALARS: dict[str, Any] = {
    name: Config.__annotations__[name]
    for name in (
        "seed", "name", "run_dir", "output_dir", "resume", "init_from", "init_from_allow", "init_from_fingerprint",
        "train_only", "dry_run", "eval_at_end",
    )
}  # fmt: skip
IF_ABSENT: dict[str, Any] = {"callbacks": {}, "init_from_allow": ()}
"""Of which configurations of earlier versions say nothing, and null is no value."""
NEEDED = "<needed>"
"""How an experiment says that `init_from` must be given: in the place of null, OmegaConf's own ??? has no effect."""
SEEDS = 2**32
"""Seeds that every generator takes."""
MODEL_KEYS = ("vocab_size", "backend", "embedding", "layers", "attention")


def parse_config(plain: Mapping[str, Any]) -> Config:
    """Build and check the whole configuration.

    Args:
        plain: nested plain values without interpolations, as `Config.plain` holds them.

    Raises:
        ConfigError: for anything unknown, missing, mistyped or contradictory, with its dotted key.
    """
    known = ("model", "block", *SECTIONS, *SCALARS, "choices")
    for key in plain:
        if key not in known:
            raise ConfigError(
                f"{key} = {plain[key]!r}: unknown key.{nearest(str(key), known)} Allowed here: {', '.join(known)}."
            )
    given = {**IF_ABSENT, **plain}
    for key in ("model", "block", *SECTIONS):
        if not isinstance(given.get(key), Mapping):
            raise ConfigError(f"{key}: expected a mapping, got {given.get(key)!r}.")
    sections: dict[str, Any] = {name: fields.build(cls, given[name], name) for name, cls in SECTIONS.items()}
    scalars = {name: fields.convert(given.get(name), _hint(name), name) for name in SCALARS}
    block = fields.build(BlockConfig, plain["block"], "block")
    size, data = sections["size"], sections["data"]
    assert isinstance(size, SizeConfig)
    assert isinstance(data, DataConfig)
    tokenizer = sections["tokenizer"]
    assert isinstance(tokenizer, TokenizerConfig)
    from minillm.data.check import check
    from minillm.data.tokenizer import asked_vocab_size

    check(data, tokenizer)
    _check_init(scalars, tokenizer)
    vocab_size = fields.convert(plain["model"].get("vocab_size"), int | None, "model.vocab_size")
    if vocab_size is None and data.source == "task":
        from minillm.data.tasks.data import task_of

        vocab_size = len(task_of(data).vocabulary)
    elif vocab_size is None:
        vocab_size = asked_vocab_size(tokenizer)  # tokenizer=file: the file says it
    model, warnings = model_config(plain["model"], size, block, data.seq_len, vocab_size)
    choices = {str(k): str(v) for k, v in (plain.get("choices") or {}).items()}
    config = Config(
        model=model,
        **sections,
        **scalars,
        choices=choices,
        warnings=(*warnings, *_idle_numbers(sections["schedule"], sections["trainer"])),
        plain=dict(plain),
    )
    _check_numbers(config)
    if config.callbacks.length_probe is not None:
        _check_probe(config.callbacks.length_probe)
    return config


def _check_probe(probe: LengthProbeConfig) -> None:
    where = "callbacks.length_probe"
    for name, number in (("every", probe.every), ("samples", probe.samples)):
        if number < 1:
            raise ConfigError(f"{where}.{name} = {number}: must be 1 or more.")
    if not probe.lengths or probe.lengths[0] != 1 or list(probe.lengths) != sorted(set(probe.lengths)):
        raise ConfigError(f"{where}.lengths = {list(probe.lengths)}: must be rising multiples, from 1.")


def _check_init(scalars: Mapping[str, Any], tokenizer: TokenizerConfig) -> None:
    """Settings of a start from given weights that are missing, or that nothing reads."""
    if scalars["init_from"] == NEEDED:
        raise ConfigError(
            "init_from: missing. What is asked for begins with trained weights: give a run folder, a checkpoint file "
            "or a Hugging Face folder, as in init_from=outputs/rope-micro-embedded-s1-3f9c2a1b."
        )
    if scalars["init_from"] is None:
        for name in ("init_from_allow", "init_from_fingerprint"):
            if scalars[name]:
                raise ConfigError(f"{name} = {scalars[name]!r}: has no effect without init_from.")
        if tokenizer.source == "init_from":
            raise ConfigError("tokenizer.source = 'init_from': is for runs with init_from. Allowed: train, file.")
    if scalars["train_only"] == ():
        raise ConfigError("train_only = []: nothing would be trained. Allowed: a list of patterns, or null for all.")


def _idle_numbers(schedule: ScheduleConfig, trainer: TrainerConfig) -> list[str]:
    """Numbers of the run that do not come into effect."""
    steps, out = trainer.max_steps, []
    if schedule.warmup_steps > steps:
        out.append(
            f"schedule.warmup_steps = {schedule.warmup_steps} is above trainer.max_steps = {steps}: "
            "the peak learning rate is never reached."
        )
    if trainer.stop_at_step is not None and trainer.stop_at_step > steps:
        out.append(
            f"trainer.stop_at_step = {trainer.stop_at_step} has no effect: trainer.max_steps = {steps} comes first."
        )
    return out


def _hint(name: str) -> Any:
    return fields._hints(Config)[name]


def model_config(
    plain: Mapping[str, Any], size: SizeConfig, block: BlockConfig, seq_len: int, vocab_size: int
) -> tuple[ModelConfig, tuple[str, ...]]:
    """The checked model of a `model` mapping, and warnings for settings of its plan that take no effect."""
    for key in plain:
        if key not in MODEL_KEYS:
            raise ConfigError(
                f"model.{key} = {plain[key]!r}: unknown key.{nearest(str(key), MODEL_KEYS)} "
                f"Allowed here: {', '.join(MODEL_KEYS)}."
            )
    for name in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "head_dim"):
        if getattr(size, name) < 1:
            raise ConfigError(f"size.{name} = {getattr(size, name)}: must be 1 or more.")
    layers = plain.get("layers")
    if not isinstance(layers, Mapping):
        raise ConfigError(f"model.layers: expected a mapping with kinds and pattern, got {layers!r}.")
    embedding = plain.get("embedding") or {}
    if not isinstance(embedding, Mapping) or set(embedding) - {"position"}:
        raise ConfigError(f"model.embedding: expected a mapping with 'position' alone, got {embedding!r}.")
    _check_block(block)
    specs, warnings = expand.expand(
        layers,
        plain.get("attention") or {},
        size.num_hidden_layers,
        expand.Heads(size.num_attention_heads, size.num_key_value_heads, size.head_dim),
        seq_len,
        base={"qkv_bias": block.attention_bias, "num_key_value_heads": size.num_key_value_heads},
    )
    model = ModelConfig(
        vocab_size=vocab_size,
        hidden_size=size.hidden_size,
        intermediate_size=size.intermediate_size,
        num_hidden_layers=size.num_hidden_layers,
        max_position_embeddings=seq_len,
        layers=specs,
        block=block,
        embedding_position=expand.embedding_scheme(embedding.get("position"), size.hidden_size),
        backend=fields.convert(plain.get("backend", "auto"), fields._hints(ModelConfig)["backend"], "model.backend"),
    )
    if model.embedding_position is not None:
        positions = model.embedding_position.max_positions(model.max_position_embeddings)
        if positions is not None and positions < seq_len:
            raise ConfigError(
                f"model.embedding.position: {model.embedding_position} knows {positions} positions, and the training "
                f"length is {seq_len}."
            )
    if model.vocab_size < 1:
        raise ConfigError(f"model.vocab_size = {model.vocab_size}: must be 1 or more.")
    _check_embedding(model)
    for spec in model.layers:
        check_backend(model.backend, spec)
    return model, warnings


def _check_embedding(model: ModelConfig) -> None:
    """A position that no layer could see."""
    scheme, block = model.embedding_position, model.block
    if scheme is None or not scheme.same_in_all_channels or block.norm != "layernorm":
        return
    if block.embedding_norm or block.norm_placement not in ("post", "branch_post"):
        raise ConfigError(
            f"model.embedding.position: '{scheme.scheme}' moves all channels of a token alike, and block.norm = "
            f"layernorm (block.norm_placement = {block.norm_placement}) takes that away before every layer. "
            f"Use block.norm=rmsnorm, or another scheme."
        )


def _check_block(block: BlockConfig) -> None:
    """Block settings that would do nothing, or leave nothing of the signal."""
    if block.norm_bias and block.norm == "rmsnorm":
        raise ConfigError("block.norm_bias = True: rmsnorm has no bias. Allowed: false, or block.norm=layernorm.")
    if block.norm_unit_offset and block.norm == "layernorm":
        raise ConfigError("block.norm_unit_offset = True: is for rmsnorm. Allowed: false, or block.norm=rmsnorm.")
    scale = block.embedding_scale
    for key, number in {
        "norm_eps": block.norm_eps,
        "initializer_range": block.initializer_range,
        "logit_scale": block.logit_scale,
        "residual_scale": block.residual_scale,
        "final_logit_softcapping": block.final_logit_softcapping,
        "embedding_scale": None if isinstance(scale, str) else scale,
    }.items():
        if number is not None and number <= 0:
            raise ConfigError(f"block.{key} = {number}: must be above 0.")


def _check_numbers(config: Config) -> None:
    """Ranges that the types do not say."""
    at_least_one = {
        "data.seq_len": config.data.seq_len,
        "data.batch_size": config.data.batch_size,
        "trainer.max_steps": config.trainer.max_steps,
        "trainer.devices": config.trainer.devices,
        "trainer.num_nodes": config.trainer.num_nodes,
        "trainer.accumulate": config.trainer.accumulate,
        "trainer.val_every": config.trainer.val_every,
        "trainer.checkpoint_every": config.trainer.checkpoint_every,
        "trainer.log_every": config.trainer.log_every,
        "trainer.stop_at_step": config.trainer.stop_at_step,
        "trainer.val_batches": config.trainer.val_batches,
        "trainer.keep_checkpoints": config.trainer.keep_checkpoints,
        "trainer.sample_every": config.trainer.sample_every,
        "trainer.sample_tokens": config.trainer.sample_tokens,
        "trainer.num_threads": config.trainer.num_threads,
    }
    for key, value in at_least_one.items():
        if value is not None and value < 1:
            raise ConfigError(f"{key} = {value}: must be 1 or more.")
    above_zero = {
        "optim.lr": config.optim.lr,
        "optim.eps": config.optim.eps,
        "optim.grad_clip": config.optim.grad_clip,
        "trainer.loss_spike": config.trainer.loss_spike,
    }
    for key, number in above_zero.items():
        if number is not None and number <= 0:
            raise ConfigError(f"{key} = {number}: must be above 0.")
    for key, number in {"optim.beta1": config.optim.beta1, "optim.beta2": config.optim.beta2}.items():
        if not 0 <= number < 1:
            raise ConfigError(f"{key} = {number}: must be at least 0 and below 1.")
    between = {
        "schedule.decay_fraction": config.schedule.decay_fraction,
        "schedule.min_lr_ratio": config.schedule.min_lr_ratio,
    }
    for key, number in between.items():
        if not 0 <= number <= 1:
            raise ConfigError(f"{key} = {number}: must be between 0 and 1.")
    if config.optim.weight_decay < 0:
        raise ConfigError(f"optim.weight_decay = {config.optim.weight_decay}: must not be negative.")
    if config.schedule.warmup_steps < 0:
        raise ConfigError(f"schedule.warmup_steps = {config.schedule.warmup_steps}: must not be negative.")
    if not 0 <= config.seed < SEEDS:
        raise ConfigError(f"seed = {config.seed}: must be from 0 to {SEEDS - 1}.")
    if config.trainer.devices * config.trainer.num_nodes > 1 and config.trainer.strategy == "auto":
        raise ConfigError(
            f"trainer.devices = {config.trainer.devices}, trainer.num_nodes = {config.trainer.num_nodes} with "
            "trainer.strategy = auto: several processes need trainer=ddp or trainer=fsdp."
        )
    parts = config.trainer.devices * config.trainer.num_nodes * config.trainer.accumulate
    if config.data.batch_size % parts:
        raise ConfigError(
            f"data.batch_size = {config.data.batch_size}: must be divisible by trainer.devices * trainer.num_nodes * "
            f"trainer.accumulate = {parts}."
        )
