"""`MinillmForCausalLM`: a Decoder of any plan as a model of transformers, with `generate`, loss and saving."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.modeling_outputs import CausalLMOutputWithPast

from minillm.attention.cache import KVCache
from minillm.errors import MinillmError
from minillm.hub.own_config import MinillmConfig
from minillm.model.decoder import Decoder

CACHE = "cache" if "cache" in {f.name for f in dataclasses.fields(CausalLMOutputWithPast)} else "past_key_values"
"""What this version of transformers calls it in arguments and outputs."""


class MinillmCache(Cache):
    """Holds the Decoder's own cache, with rings where layers have windows. It grows and is read, nothing else."""

    def __init__(self, kv: KVCache) -> None:
        super().__init__(layers=[])
        self.kv = kv

    def __len__(self) -> int:
        return len(self.kv.layers)

    def __repr__(self) -> str:
        return f"MinillmCache({len(self.kv)} tokens, {len(self)} layers)"

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens seen, padding included."""
        return len(self.kv)

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1

    is_compileable = False
    is_croppable = False
    is_initialized = True

    @property
    def is_linear(self) -> list[bool]:
        return [False] * len(self)

    @property
    def is_sliding(self) -> list[bool]:
        return [layer.keys.reach is not None for layer in self.kv.layers]

    @property
    def batch_size(self) -> int:
        return self.kv.batch_size

    def reorder_cache(self, beam_idx: Tensor) -> None:
        raise _cannot("be reordered, which beam search needs")

    def crop(self, tokens_to_remove: int) -> None:
        raise _cannot("be cut, which assisted generation needs: its rings forget what is out of reach")

    def batch_repeat_interleave(self, repeats: int) -> None:
        raise _cannot("be repeated")

    def batch_select_indices(self, indices: Tensor) -> None:
        raise _cannot("be selected from")

    def reset(self) -> None:
        raise _cannot("be emptied; begin a new one by passing none")

    def update(self, *args: Any, **kwargs: Any) -> Any:
        raise _cannot("be written from outside of the model")


def _cannot(what: str) -> MinillmError:
    return MinillmError(
        f"The cache of a minillm model cannot {what}. Pass use_cache=False, which gives the same logits."
    )


class MinillmForCausalLM(PreTrainedModel, GenerationMixin):
    """The Decoder, `model`, behind the arguments and outputs of transformers.

    A tied head is the embedding itself and has no tensor of its own, in memory as in files.
    """

    config_class = MinillmConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = False
    accepts_loss_kwargs = True
    _no_split_modules = ["Block"]
    _is_stateful = True  # past tokens cannot be taken back: transformers then refuses assisted generation itself

    def __init__(self, config: MinillmConfig) -> None:
        super().__init__(config)
        self.model = Decoder(config.model_config())
        self.post_init()

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """As in transformers, but only from safetensors, and a tensor that is missing, unknown or of another shape is
        an error: a model with weights drawn at random in it is not the one asked for."""
        if kwargs.get("use_safetensors") is False:
            raise MinillmError("use_safetensors = False: other files are pickles, which are not read here.")
        kwargs["use_safetensors"] = True
        wanted = kwargs.pop("output_loading_info", False)
        loaded: Any = super().from_pretrained(pretrained_model_name_or_path, *args, output_loading_info=True, **kwargs)
        model, report = loaded
        wrong = {
            key.removesuffix("_keys"): sorted(map(str, report[key]))
            for key in ("missing_keys", "unexpected_keys", "mismatched_keys")
            if report.get(key)
        }
        if wrong:
            told = "; ".join(f"{key}: {', '.join(names[:6])}" for key, names in wrong.items())
            raise MinillmError(
                f"{pretrained_model_name_or_path} does not hold the weights that its config.json describes: {told}."
            )
        return (model, report) if wanted else model

    def initialize_weights(self) -> None:
        """A new model gets the weights that `minillm.build_model` gives it; loaded ones are left alone."""
        if not any(getattr(p, "_is_hf_initialized", False) for p in self.parameters()):
            self.model.reset_parameters(seed=0)

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embed_tokens

    def get_output_embeddings(self) -> nn.Module | None:
        return self.model.lm_head

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> Any:
        raise MinillmError("vocab_size is part of a minillm model's plan: it cannot be resized.")

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: MinillmCache | None = None,
        past_key_values: MinillmCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        inputs_embeds: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        num_items_in_batch: Any = None,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """Logits (B, T, V) in float32, the loss where `labels` are given, and the cache with use_cache.

        Args:
            attention_mask: (B, T), or (B, seen + T) beside a cache; 0 is padding, which is seen by none and has no
                position: positions count real tokens, in every scheme and however a batch is padded. A window counts
                entries: padding between real tokens takes up room in it.
            labels: as `input_ids`, shifted in here; -100 is not counted.
            use_cache: None is the configuration's, but never in training.
        """
        for name, value in (
            ("inputs_embeds", inputs_embeds),
            ("output_attentions", output_attentions),
            ("output_hidden_states", output_hidden_states),
        ):
            if value is not None and value is not False:
                raise MinillmError(f"{name}: a minillm model does not have it. `model.hidden(ids)` gives last states.")
        if input_ids is None:
            raise MinillmError("input_ids: missing.")
        past = cache if cache is not None else past_key_values
        if past is not None and not isinstance(past, MinillmCache):
            raise MinillmError(f"{CACHE}: a {type(past).__name__}, where only a cache that this model gave can stand.")
        if use_cache is None:
            use_cache = self.config.use_cache and not self.training
        if past is None and use_cache:
            past = MinillmCache(self.model.new_cache(input_ids.shape[0]))
        kv = None if past is None else past.kv
        documents = _documents(attention_mask, input_ids, 0 if kv is None else len(kv))
        hidden = self.model.hidden(input_ids, documents, position_ids, kv)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) and logits_to_keep else logits_to_keep
        logits = self.model.logits(hidden if isinstance(kept, int) else hidden[:, kept])
        loss = None
        if labels is not None:
            more = {} if num_items_in_batch is None else {"num_items_in_batch": num_items_in_batch}
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **more)
        given: dict[str, Any] = {CACHE: past if use_cache else None}
        out = CausalLMOutputWithPast(loss=loss, logits=logits, **given)
        return out.to_tuple() if return_dict is False else out

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False  # `forward` makes the cache

    def prepare_inputs_for_generation(self, input_ids: Tensor, **kwargs: Any) -> dict[str, Any]:
        """Those of the tokens that the cache has not seen."""
        # `kwargs` by that name: with it transformers takes the arguments of `forward` for those of `generate`.
        past = kwargs.get(CACHE)
        seen = 0 if past is None else past.get_seq_length()
        names = ("attention_mask", "use_cache", "logits_to_keep", CACHE)
        kept = {name: kwargs[name] for name in names if kwargs.get(name) is not None}
        return {"input_ids": input_ids[:, seen:], **kept}


def _documents(mask: Tensor | None, tokens: Tensor, seen: int) -> Tensor | None:
    """-1 for padding and 0 for the rest, or None where nothing in this call is padded."""
    if mask is None:
        return None
    batch, length = tokens.shape
    if mask.ndim != 2 or mask.shape[0] != batch or mask.shape[1] not in (length, seen + length):
        raise MinillmError(
            f"attention_mask: shape {tuple(mask.shape)}, allowed: {(batch, seen + length)}, one entry per token."
        )
    now = mask[:, -length:].bool()
    return None if bool(now.all()) else torch.where(now, 0, -1)
