"""What a Hugging Face family is to this project: its config.json read and written, and its tensors' names and layout.

A family is one file in `families/` with one instance under `register`. Its `config` writes its best attempt at any
model of ours; whether that attempt says all of the plan is found out by reading it back (`differences`), so there is
one statement of what each key means, in `plan`, and no list of exceptions beside it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeVar

from minillm.config.schema import ModelConfig
from minillm.errors import ConfigError, MinillmError, nearest
from minillm.hub.compare import differences
from minillm.hub.links import Link
from minillm.hub.plan import Plan
from minillm.hub.reader import Reader
from minillm.position.rope import RoPE

NO_IDS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
"""Written out: the classes' own defaults are ids of vocabularies of 30,000 tokens and more."""

UNWRITABLE = "its config.json has no form for a model like this one: the nearest that can be written is no valid one"
"""The reason of a family whose attempt cannot be read back, which says nothing of what stands in the way."""


class Family:
    """Base of all families; `name` is `model_type` in config.json."""

    name: ClassVar[str]
    rank: ClassVar[int]
    """Export tries families in this order: the plainest first."""
    architecture: ClassVar[str]
    """The class in transformers that has the language-model head."""
    exports: ClassVar[bool] = True
    """Whether export may write it; a multimodal family is read for its text part alone."""
    prefix: ClassVar[str] = "model."
    """Stands before the names of all tensors but the head's; files of the headless class lack it."""
    by_name_only: ClassVar[bool] = False
    """Export takes it only when it is asked for by name."""
    layout: ClassVar[Literal["half", "interleaved"] | None] = "half"
    """Which channels its code rotates together; export permutes queries and keys of plans with the other layout.
    None: either, as the plan says."""
    inert: ClassVar[frozenset[str]] = frozenset()
    """Keys of this family's files that change nothing, beside `reader.INERT`."""
    ignored_tensors: ClassVar[str] = r"rotary_emb\.(\w+_)?inv_freq$"
    """Pattern of stored tensors that hold no weights."""
    head: ClassVar[str] = "lm_head.weight"
    """Their name of the output head."""

    embedding: ClassVar[str] = "model.embed_tokens.weight"
    """Their name of the token embedding."""

    # ---- what a family provides ----------------------------------------------------------------------------------

    def plan(self, config: Reader) -> Plan:
        """The model that a config.json describes, layer by layer."""
        raise NotImplementedError

    def config(self, model: ModelConfig) -> dict[str, Any]:
        """The nearest config.json to `model`, `model_type` and `architectures` aside."""
        raise NotImplementedError

    def links(self, model: ModelConfig) -> list[Link]:
        """One link for each tensor of ours; their names with `prefix`, the head's only where it is not tied."""
        raise NotImplementedError

    def demands(self, model: ModelConfig) -> list[str]:
        """What the class in transformers asks of `model` beyond what config.json says; empty where all is met."""
        return []

    # ---- what every family has -----------------------------------------------------------------------------------

    def read(self, values: Mapping[str, Any], where: str = "config.json") -> tuple[ModelConfig, tuple[str, ...]]:
        """The checked configuration and warnings. ConfigError names a key that cannot be honoured."""
        reader = Reader(values, where)
        reader.taken.add("is_causal")
        if values.get("is_causal", True) is not True:
            # transformers builds masks by it, whatever the family; there null is false too
            raise reader.error("is_causal", "attention to later tokens is not there yet. Allowed: true")
        plan = self.plan(reader)
        reader.finish(self.inert)
        try:
            model, warnings = plan.model_config()
            return model, (*reader.warnings, *warnings)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None

    def write(self, model: ModelConfig) -> dict[str, Any]:
        """config.json for `model`, whole. Call `cannot` first: what the family does not know is not in it."""
        return {"architectures": [self.architecture], "model_type": self.name, **self.config(model), **NO_IDS}

    def cannot(self, model: ModelConfig) -> list[str]:
        """Why this family does not express `model` exactly, each reason with its layers; empty where it does."""
        try:
            got, _ = self.read(self.write(model))
        except MinillmError:
            # Why is no help: it speaks of the attempt, in which sizes and settings are not those of the plan.
            return [UNWRITABLE, *self.demands(model)]
        # Both in one layout: which channels turn together is settled by permuting weights.
        return [*differences(relaid(model, "half"), relaid(got, "half"), self.name), *self.demands(model)]

    def text_part(self, values: Mapping[str, Any], where: str, text_only: bool) -> Mapping[str, Any]:
        """The keys of the language model: all of them, but in a multimodal family."""
        return values

    def tensor_name(self, name: str) -> str | None:
        """A stored tensor's name as `links` has it, or None where it holds no weights."""
        if re.search(self.ignored_tensors, name):
            return None
        if name == self.head or name.startswith(self.prefix):
            return name
        return self.prefix + name

    def file_name(self, name: str) -> str:
        """What files call a tensor, where the class in transformers has since given it another name."""
        return name


def written_sizes(model: ModelConfig) -> dict[str, int]:
    """The sizes under the names that Llama's config.json and most others have; heads are the first layer's."""
    first = model.layers[0]
    return {
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.intermediate_size,
        "num_hidden_layers": model.num_hidden_layers,
        "num_attention_heads": first.num_attention_heads,
        "num_key_value_heads": first.num_key_value_heads,
        "head_dim": first.head_dim,
        "max_position_embeddings": model.max_position_embeddings,
    }


def relaid(model: ModelConfig, layout: Literal["half", "interleaved"] | None) -> ModelConfig:
    """`model` with every rotated layer in the given layout: the same function once its weights are permuted."""
    if layout is None:
        return model
    layers = tuple(
        dataclasses.replace(spec, position=dataclasses.replace(spec.position, layout=layout))
        if isinstance(spec.position, RoPE) and spec.position.layout != layout
        else spec
        for spec in model.layers
    )
    return dataclasses.replace(model, layers=layers)


FAMILIES: dict[str, Family] = {}
F = TypeVar("F", bound=type[Family])


def register(cls: F) -> F:
    """Class decorator: make a family known under its `model_type`."""
    FAMILIES[cls.name] = cls()
    return cls


def families() -> list[Family]:
    """All families, the plainest first."""
    from minillm.hub import families as _folder  # noqa: F401  # registers every file in it

    return sorted(FAMILIES.values(), key=lambda family: (family.rank, family.name))


def family(name: str, where: str = "family") -> Family:
    """The family of that `model_type`. ConfigError says what it is where it is known to be beyond this project."""
    families()
    if isinstance(name, str) and name in FAMILIES:
        return FAMILIES[name]
    what = next((words for pattern, words in OTHERS if re.search(pattern, str(name))), None)
    raise ConfigError(
        f"{where} = {name!r}: not a family that this project reads{f' (it is {what})' if what else ''}."
        f"{nearest(str(name), FAMILIES)} Known: {', '.join(FAMILIES)}."
    )


OTHERS: Sequence[tuple[str, str]] = (
    (
        r"moe|mixtral|dbrx|gpt_oss|deepseek|llama4|jamba|arctic|grok|minimax|glm4_5|ernie4",
        "a mixture of experts",
    ),
    (
        r"_vl|vision|llava|mllama|paligemma|idefics|siglip|clip|pixtral|gemma3n|gemma4|video|audio|omni",
        "multimodal",
    ),
    (
        r"mamba|rwkv|qwen3_next|qwen3_5|hybrid|recurrent|kimi|lfm|xlstm|falcon_h1|zamba|bamba",
        "built on linear attention or state-space layers",
    ),
    (r"bert|electra|t5|bart|pegasus|whisper|marian|xlm", "not a decoder-only model"),
)
"""Other `model_type`s: pattern of the name, and what they are."""
