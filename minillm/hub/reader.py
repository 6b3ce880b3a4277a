"""Reading a config.json without losing anything: every key is understood, known not to matter, or refused by name.

A key that is silently dropped is a different model. `Reader` remembers what was asked for; `finish` refuses the rest.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Collection, Mapping
from typing import Any

from minillm.config import fields
from minillm.errors import ConfigError

_INERT = """
    architectures model_type auto_map transformers_version torch_dtype dtype use_cache cache_implementation
    bos_token_id eos_token_id pad_token_id sep_token_id cls_token_id unk_token_id decoder_start_token_id
    forced_bos_token_id forced_eos_token_id suppress_tokens begin_suppress_tokens
    initializer_range attention_dropout attn_dropout attn_pdrop hidden_dropout hidden_dropout_prob resid_pdrop
    embd_pdrop resid_dropout classifier_dropout dropout pretraining_tp _name_or_path name_or_path _attn_implementation
    attn_implementation _attn_implementation_autoset use_flash_attention use_flash_attn output_attentions
    output_hidden_states return_dict return_dict_in_generate torchscript use_bfloat16 chunk_size_feed_forward id2label
    label2id num_labels problem_type task_specific_params finetuning_task tokenizer_class prefix max_length min_length
    do_sample early_stopping num_beams num_beam_groups diversity_penalty temperature top_k top_p typical_p
    repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids
    num_return_sequences output_scores exponential_decay_length_penalty remove_invalid_values tf_legacy_loss
    gradient_checkpointing _commit_hash is_decoder unsloth_version unsloth_fixed
    is_llama_config transformers.js_config neftune_noise_alpha model_max_length
"""
INERT = frozenset(_INERT.split())
"""Keys that change nothing at inference: bookkeeping, dropout, cache flags, ids, generation defaults."""

MOST = dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "block_count"), 10_000)
"""The largest sizes that are read, where that is below 2 ** 31: a plan has an entry for each layer."""

BEYOND = (
    (r"expert|moe|router", "a mixture of experts, which this project does not have"),
    (r"vision|image|audio|mm_", "another modality than text, which this project does not have"),
    (r"linear_|mamba|ssm|conv_|gated_delta|rwkv", "linear attention or a state-space layer, which is not there yet"),
    (r"quantization", "quantised weights; load it in transformers, dequantise, and save it anew"),
    (r"mtp|nextn", "heads that predict several tokens"),
    (r"is_encoder_decoder|cross_attention", "an encoder beside the decoder"),
    (r"lora|adapter", "an adapter; merge it into the weights first"),
    (r"bidirectional", "attention to later tokens"),
)
"""What a key that no family understands probably stands for: pattern of its name, and how to call it."""

ON = re.compile(
    r"(^|[._])causal$|^(use_)?(rope|rotary|rotary_emb\w*)$|^scale_(attn|attention)|(normalize|layer_?norm)_before$"
)
"""Keys whose false is no absence: later tokens seen, no rotation, unscaled scores, norms elsewhere."""


class Reader:
    """The keys of one config.json, taken one by one with their types; `where` begins every message."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values, self.where = values, where
        self.taken: set[str] = set()
        self.warnings: list[str] = []
        """What is read otherwise than some would expect."""

    def take(self, name: str, hint: Any, default: Any = None) -> Any:
        """The value of `name` as type `hint`. Missing, or null where `hint` has no None: `default`."""
        self.taken.add(name)
        if name not in self.values or (self.values[name] is None and not _takes_none(hint)):
            return default
        return fields.convert(self.values[name], hint, f"{self.where}: {name}")

    def mapping(self, values: Mapping[str, Any], name: str, inside: str) -> Mapping[str, Any]:
        """The mapping `name` among those `inside` a key; empty where it is missing or null."""
        value = values.get(name)
        if value is not None and not isinstance(value, Mapping):
            raise ConfigError(f"{self.where}: {inside}.{name} = {value!r}: expected a mapping.")
        return value or {}

    def size(self, name: str, default: Any) -> Any:
        """A whole number of things, from 1 on and no more than any model has; `default` where it is missing or null."""
        value, most = self.take(name, int, default), MOST.get(name, 2**31)
        if self.has(name) and not 1 <= value <= most:
            raise self.error(name, f"allowed: whole numbers from 1 to {most}")
        return value

    def has(self, name: str) -> bool:
        """Whether `name` is there and not null."""
        return self.values.get(name) is not None

    def only(self, name: str, default: Any, *allowed: Any) -> Any:
        """The value of `name`, which must be one of `allowed`: this project computes nothing else there."""
        self.taken.add(name)
        value = self.values[name] if self.has(name) else default
        if value not in allowed:
            raise self.error(name, f"allowed: {', '.join(map(repr, allowed))}")
        return value

    def error(self, name: str, rule: str) -> ConfigError:
        """A ConfigError about the key `name`."""
        return ConfigError(f"{self.where}: {name} = {self.values.get(name)!r}: {rule}.")

    def finish(self, inert: Collection[str] = ()) -> None:
        """Refuse what was neither taken nor is inert, unless it is off (null, false, 0 or empty) and off is nothing."""
        for name, value in self.values.items():
            if name in self.taken or name in INERT or name in inert:
                continue
            if value is None or (value in (False, 0, [], {}, "") and not ON.search(name)):
                continue
            what = next((words for pattern, words in BEYOND if re.search(pattern, name)), None)
            reason = (
                f"this is {what}" if what else "this key is not known here, and it may change what the model computes"
            )
            raise self.error(name, reason)


def _takes_none(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType) and type(None) in typing.get_args(hint)
