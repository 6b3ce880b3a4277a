"""What `python -m minillm.generate` can be told, typed, and how it is read: KEY=VALUE, values in YAML.

settings = read(["run=outputs/RUN", "prompt=The President", "temperature=0.7", "cache=int8"])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from minillm.attention.cache_settings import CacheSettings
from minillm.config import fields
from minillm.errors import ConfigError
from minillm.generation.sampling import Sampling

TEXT = ("run", "prompt", "prompts", "out")
"""Keys whose values are taken as they stand, whatever characters they hold."""


@dataclass(frozen=True)
class GenerateSettings:
    """One call of the program."""

    run: str
    """A run folder, a checkpoint file, or a Hugging Face folder as hf:DIR."""
    prompt: str | None = None
    """The text to continue; - reads it from stdin, without its last line break."""
    prompts: str | None = None
    """A file of prompts instead: .txt, one in each line, or .jsonl, objects with a key prompt."""
    out: str | None = None
    """prompts: the .jsonl file that answers are added to; what it holds already is not made again."""
    max_new_tokens: int = 100
    temperature: float = 0.8
    """0 is greedy: always the likeliest."""
    top_k: int | None = None
    """Draw among the k likeliest."""
    top_p: float | None = None
    """Draw among the likeliest whose probabilities sum to p."""
    min_p: float | None = None
    """Draw among those at least so likely as min_p times the likeliest."""
    repetition_penalty: float = 1.0
    """Above 1, what the text holds already becomes less likely."""
    stop: tuple[str, ...] = ()
    """Text ends before any of these strings: one, or a list as in stop='["\\n\\n", "THE END"]'."""
    seed: int = 0
    """Another one gives another text, the same one the same again."""
    bos: bool = True
    """Begin with the marker that begins documents, as in training."""
    cache: CacheSettings = field(default_factory=CacheSettings)
    """full, int8 or int4; cache.group, cache.residual; cache.evict.window, cache.evict.sink_tokens."""
    batch_size: int = 8
    """prompts: how many at once."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["fp32", "bf16"] = "fp32"
    num_threads: int | None = None
    """CPU threads; null leaves PyTorch's choice."""

    @property
    def sampling(self) -> Sampling:
        """ConfigError where it is out of range."""
        return Sampling(self.temperature, self.top_k, self.top_p, self.min_p, self.repetition_penalty)

    def check(self) -> None:
        """Ranges and combinations that the types do not say."""
        _ = self.sampling
        if (self.prompt is None) == (self.prompts is None):
            given = "both are given" if self.prompt is not None else "neither is given"
            raise ConfigError(f"prompt, prompts: {given}. Allowed: prompt=TEXT, or prompts=FILE out=FILE.jsonl.")
        if self.prompts is not None and self.out is None:
            raise ConfigError("out: missing. prompts=FILE needs out=FILE.jsonl, which the answers are added to.")
        if self.out is not None and self.prompts is None:
            raise ConfigError(f"out = {self.out}: has no effect without prompts=FILE; a single text goes to stdout.")
        for name in ("max_new_tokens", "batch_size", "num_threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} = {value}: must be 1 or more.")
        if "" in self.stop:
            raise ConfigError("stop: an empty string ends every text before it begins.")


def read(arguments: Sequence[str]) -> GenerateSettings:
    """The settings of ``python -m minillm.generate ARGUMENTS``; ConfigError for anything that cannot be honoured."""
    plain: dict[str, Any] = {}
    for argument in arguments:
        key, equals, text = argument.partition("=")
        if not equals or not key or key.startswith("-"):
            raise ConfigError(f"{argument}: minillm.generate takes KEY=VALUE only, and --help.")
        _put(plain, key.split("."), text if key in TEXT else _value(key, text), key)
    if isinstance(plain.get("stop"), (str, int, float)):
        plain["stop"] = [plain["stop"]]
    settings = fields.build(GenerateSettings, plain, "generate")
    settings.check()
    return settings


def _value(key: str, text: str) -> Any:
    import yaml

    if key == "stop" and not text.startswith("["):
        return text
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        problem = " ".join(str(error).split())
        raise ConfigError(f"{key} = {text}: cannot be read as YAML: {problem}.") from None


def _put(plain: dict[str, Any], path: list[str], value: Any, key: str) -> None:
    """Set plain[a][b][c]; a bare kind of cache is its field `kind`."""
    if path == ["cache"] and not isinstance(value, dict):
        path = ["cache", "kind"]
    *above, last = path
    for name in above:
        plain = plain.setdefault(name, {})
        if not isinstance(plain, dict):
            raise ConfigError(f"{key}: '{name}' has a value of its own already.")
    if isinstance(value, dict) and isinstance(plain.get(last), dict):
        plain[last].update(value)
    elif last in plain:
        raise ConfigError(f"{key}: given twice.")
    else:
        plain[last] = value
