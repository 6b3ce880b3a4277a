"""What a data configuration must not say: settings that are missing, out of range, or could not take effect.

check(cfg.data, cfg.tokenizer)        # raises ConfigError; reads no file
"""

from __future__ import annotations

from minillm.config.schema import DataConfig, TokenizerConfig
from minillm.errors import ConfigError

MIN_VOCAB_SIZE = 257
"""The 256 bytes and the marker."""

MISSING = "???"
"""How a YAML file says that a value must be given."""

ONLY_FOR = {
    "path": ("files",),
    "hub_name": ("hub",),
    "hub_config": ("hub",),
    "held_out": ("files", "hub", "task"),
    "task": ("task",),
}
"""Data settings of some sources only: null for the others."""

NEEDED = {
    "files": {"path": "a file or folder, as in data.path=my_texts", "held_out": "a share or a count of documents"},
    "hub": {"hub_name": "a dataset, as in data.hub_name=owner/name", "held_out": "a share or a count of documents"},
    "task": {"task": "a mapping {name: needle, ...}", "held_out": "a count of samples"},
}

OWN = {
    "init_from": "the weights' own tokenizer is used",
    "task": "the task's words are the vocabulary",
}
"""Sources of a tokenizer that leave nothing to say."""
SHOWN = {"task": "needle, data=copy, ..."}
"""A source whose options are not named like it."""


def check(data: DataConfig, tokenizer: TokenizerConfig) -> None:
    """Raise ConfigError naming the key, its value, and what is allowed."""
    for key, sources in ONLY_FOR.items():
        value = getattr(data, key)
        if value is not None and data.source not in sources:
            raise ConfigError(
                f"data.{key}: {value!r} cannot take effect with data.source={data.source}. "
                f"Allowed: null, or {' or '.join(f'data={SHOWN.get(s, s)}' for s in sources)}."
            )
    for key, what in NEEDED.get(data.source, {}).items():
        if getattr(data, key) in (None, MISSING):
            raise ConfigError(f"data.{key}: missing. data={data.source} needs {what}.")
    share = data.held_out
    if share is not None and (share <= 0 or (isinstance(share, float) and share >= 1)):
        raise ConfigError(
            f"data.held_out: {share} is not allowed. Allowed: a share between 0 and 1, or a count of 1 or more."
        )
    for key in ("seq_len", "batch_size"):
        if getattr(data, key) < 1:
            raise ConfigError(f"data.{key}: {getattr(data, key)} is not allowed. Allowed: 1 or more.")
    if data.num_workers < 0:
        raise ConfigError(f"data.num_workers: {data.num_workers} is not allowed. Allowed: 0 or more.")
    if (data.source == "task") != (tokenizer.source == "task") and tokenizer.source != "init_from":
        raise ConfigError(
            f"tokenizer.source = {tokenizer.source!r}: cannot take effect with data.source={data.source}. "
            f"Allowed: {'task, as a task has its own words' if data.source == 'task' else 'train, file'}."
        )
    _check_tokenizer(tokenizer)
    if data.source == "task":
        from minillm.data.tasks.data import check_task

        check_task(data)


def _check_tokenizer(tokenizer: TokenizerConfig) -> None:
    asked = tokenizer.vocab_size
    if tokenizer.bos_token == "":
        raise ConfigError("tokenizer.bos_token: '' is not allowed. Allowed: null, or the text of a special token.")
    if tokenizer.source == "train":
        if tokenizer.path is not None:
            raise ConfigError(
                f"tokenizer.path: {tokenizer.path!r} cannot take effect with tokenizer.source=train. "
                f"Allowed: null, or tokenizer=file."
            )
        if asked is None or asked < MIN_VOCAB_SIZE:
            raise ConfigError(
                f"tokenizer.vocab_size: {'null' if asked is None else asked} is not allowed. "
                f"Allowed: {MIN_VOCAB_SIZE} (the 256 bytes and a marker) or more."
            )
        return
    if tokenizer.source in OWN:
        for key in ("path", "vocab_size", *(["bos_token"] if tokenizer.source == "task" else [])):
            if getattr(tokenizer, key) is not None:
                raise ConfigError(
                    f"tokenizer.{key}: {getattr(tokenizer, key)!r} cannot take effect with "
                    f"tokenizer.source={tokenizer.source}, where {OWN[tokenizer.source]}. Allowed: null."
                )
        return
    if tokenizer.path in (None, MISSING):
        raise ConfigError("tokenizer.path: missing. tokenizer=file needs the path of a tokenizer.json.")
    if asked is not None:
        raise ConfigError(
            f"tokenizer.vocab_size: {asked} cannot take effect with tokenizer.source=file, where the file decides. "
            f"Allowed: null."
        )
