"""What an evaluation can be told, typed: `conf/eval.yaml` is the root, `conf/suite/*.yaml` the suites' own settings.

settings = compose_eval(["runs=[outputs/a,outputs/b]", "suite.cost.seconds=0.5"])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from minillm.config import fields
from minillm.errors import ConfigError, nearest
from minillm.evaluation import variants

ProtocolName = Literal["position", "same_target", "non_overlapping", "strided"]


@dataclass(frozen=True)
class LengthPerplexitySettings:
    """`suite.length_perplexity`: loss past the training length. Lengths are multiples of it."""

    protocols: tuple[ProtocolName, ...] = ("position", "same_target", "non_overlapping", "strided")
    lengths: tuple[int, ...] = (1, 2, 4, 8, 16)
    """Rising, from 1: changes are against the training length."""
    targets: int | None = None
    """same_target: how many last tokens are scored; null is half the training length."""
    stride: int | None = None
    """strided: tokens between windows; null is half the window's length."""
    document_tokens: int | None = None
    """non_overlapping, strided: tokens read of each document; null is 1.5 times the longest length."""
    max_documents: int = 16
    min_documents: int = 2
    """A length is measured if at least so many documents are longer than it; others are reported as not measured."""
    batch_tokens: int = 4096
    """Most tokens in one forward pass (a longer window goes alone)."""
    key_ngram: int = 3
    """Key tokens (evaluation/key_tokens.py) complete an n-gram of so many tokens that stood in the text before, ..."""
    key_distance: int | None = None
    """... last more than so many tokens before; null is half the training length."""

    def check(self, where: str) -> None:
        """Raise ConfigError for ranges that the types do not say; `where` is the key of these settings."""
        rising_multiples(self.lengths, f"{where}.lengths")
        if self.lengths[0] != 1:
            raise ConfigError(
                f"{where}.lengths = {list(self.lengths)}: must begin with 1, the training length, against which "
                "changes are measured."
            )
        if not self.protocols or len(set(self.protocols)) != len(self.protocols):
            raise ConfigError(f"{where}.protocols = {list(self.protocols)}: each once, at least one.")
        at_least_one(
            self, where, "targets", "stride", "document_tokens", "max_documents", "min_documents", "batch_tokens",
            "key_ngram", "key_distance",
        )  # fmt: skip


@dataclass(frozen=True)
class CostSettings:
    """`suite.cost`: speed and memory by length. Lengths are multiples of the training length."""

    lengths: tuple[int, ...] = (1, 2, 4, 8, 16)
    seconds: float = 1.0
    """Each timing repeats until so much time has passed, three times at least."""
    train_tokens: int | None = None
    """Tokens in one training step, at every length alike; null is the longest length."""
    decode_tokens: int = 32
    """Tokens decoded one by one at each length."""

    def check(self, where: str) -> None:
        """As LengthPerplexitySettings.check."""
        rising_multiples(self.lengths, f"{where}.lengths")
        at_least_one(self, where, "train_tokens", "decode_tokens")
        if self.seconds <= 0:
            raise ConfigError(f"{where}.seconds = {self.seconds}: must be above 0.")


@dataclass(frozen=True)
class AttentionSettings:
    """`suite.attention`: where attention goes. Lengths are multiples of the training length."""

    lengths: tuple[int, ...] = (1, 4, 16)
    """The first one also has the head knockout, and the rows that runs are compared by."""
    samples: int = 8
    """Documents read at each length."""
    recall_samples: int = 64
    """Samples read at each length, of a run on a recall task."""
    min_documents: int = 2
    """A length is measured where so many documents are that long."""
    span: int = 16
    """Text: tokens that are repeated at the end, a quarter of the length at most. Recall tasks: most answer tokens of a
    sample that are looked at."""
    rows: int = 64
    """Query rows of each text, spread evenly, for entropy, sinks and distances."""
    positions: int = 256
    """Tokens of each text whose hidden states the position probe reads; 0 leaves it out."""
    ridge: float = 0.01
    """Penalty of the position probe, per token."""
    sink_thresholds: tuple[float, ...] = (0.1, 0.3, 0.5)
    """A head is a sink where its mean attention to the first token is above it."""
    knockout_heads: int | None = None
    """Retrieval heads silenced at once; null is all that are half as good as the best, a quarter of all at most."""
    knockout_draws: int = 3
    """Sets of as many other heads, for comparison."""
    similarity_documents: int = 4
    """Texts of which some rows of probabilities are kept, to compare runs by; 0 keeps none."""
    similarity_rows: int = 8
    """Rows of each."""
    similarity_tokens: int = 256
    """The first so many tokens of each."""
    batch_tokens: int = 4096
    """Most tokens in one forward pass (a longer text goes alone)."""

    def check(self, where: str) -> None:
        """As LengthPerplexitySettings.check."""
        rising_multiples(self.lengths, f"{where}.lengths")
        at_least_one(
            self, where, "samples", "recall_samples", "min_documents", "rows", "knockout_heads", "knockout_draws",
            "similarity_rows", "similarity_tokens", "batch_tokens",
        )  # fmt: skip
        if self.span < 2:
            raise ConfigError(f"{where}.span = {self.span}: must be 2 or more, as its first token cannot be looked up.")
        for name in ("positions", "similarity_documents"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{where}.{name} = {getattr(self, name)}: must be 0 or more.")
        if self.ridge <= 0:
            raise ConfigError(f"{where}.ridge = {self.ridge}: must be above 0.")
        if not all(0 < t < 1 for t in self.sink_thresholds):
            raise ConfigError(f"{where}.sink_thresholds = {list(self.sink_thresholds)}: must lie between 0 and 1.")


@dataclass(frozen=True)
class RecallSettings:
    """`suite.recall`: the suites named after tasks. Lengths are multiples of the training length."""

    lengths: tuple[int, ...] = (1, 2, 4, 8, 16)
    """Rising, from 1: what a model does at its training length says whether the others mean anything."""
    samples: int = 256
    """Test samples at each length."""
    depths: int = 4
    """Bins of equal width for where a needle lies."""
    batch_tokens: int = 8192
    """Most tokens in one forward pass (a longer sample goes alone)."""

    def check(self, where: str) -> None:
        """As LengthPerplexitySettings.check."""
        rising_multiples(self.lengths, f"{where}.lengths")
        if self.lengths[0] != 1:
            raise ConfigError(f"{where}.lengths = {list(self.lengths)}: must begin with 1, the training length.")
        at_least_one(self, where, "samples", "depths", "batch_tokens")


RulerTaskName = Literal[
    "niah_single_1", "niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multikey_2", "niah_multikey_3",
    "niah_multivalue", "niah_multiquery", "vt", "cwe", "fwe", "qa_1", "qa_2",
]  # fmt: skip
RulerForm = Literal["generate", "likelihood"]
SHORTEST_RULER = 256


@dataclass(frozen=True)
class RulerSettings:
    """`suite.ruler`: the 13 tasks of RULER in our own wording. Lengths are tokens, the answer's included."""

    tasks: tuple[RulerTaskName, ...] = get_args(RulerTaskName)
    """qa_1 and qa_2 need a file; without it they are reported as not measured."""
    lengths: tuple[int, ...] = (256, 512, 1024)
    """Rising. A task that does not fit a length is reported with the reason."""
    samples: int = 10
    """Of each task at each length."""
    forms: tuple[RulerForm, ...] = ("likelihood",)
    """likelihood: is the gold answer the likeliest of ten? For small models. generate: RULER's score of what is
    generated."""
    seed: int = 0
    """Of the samples."""
    depths: int = 4
    """Bins of equal width for where a needle lies."""
    squad: str | None = None
    """A file in SQuAD's form, which qa_1 asks from."""
    hotpotqa: str | None = None
    """A file in HotpotQA's form, which qa_2 asks from."""
    batch_tokens: int = 8192
    """Most tokens in one forward pass (a longer sample goes alone)."""

    def check(self, where: str) -> None:
        """As LengthPerplexitySettings.check."""
        lengths = list(self.lengths)
        if not lengths or lengths[0] < SHORTEST_RULER or lengths != sorted(set(lengths)):
            raise ConfigError(f"{where}.lengths = {lengths}: must be rising numbers of tokens, from {SHORTEST_RULER}.")
        for name in ("tasks", "forms"):
            given = getattr(self, name)
            if not given or len(set(given)) != len(given):
                raise ConfigError(f"{where}.{name} = {list(given)}: each once, at least one.")
        at_least_one(self, where, "samples", "depths", "batch_tokens")
        if self.seed < 0:
            raise ConfigError(f"{where}.seed = {self.seed}: must be 0 or more.")


@dataclass(frozen=True)
class HarnessSettings:
    """`suite.harness`: tasks of lm-evaluation-harness (the extra `harness`), without any download."""

    tasks: tuple[str, ...] = ("minillm_ruler_likelihood",)
    """Tasks, groups or tags: ours, which need no data, and the harness's, where a cache of `datasets` holds theirs."""
    lengths: tuple[int, ...] = (1024,)
    """Rising. Tokens of tasks that are made at a length: ours, and those of the harness's group `ruler`."""
    limit: int | None = 20
    """Documents of each task; null is all, of our own tasks 500."""
    num_fewshot: int | None = None
    """Worked examples before each question; null leaves what each task says."""
    start_marker: bool = True
    """Begin each text with the start marker, as training documents do; false for numbers of `lm_eval --model hf` on a
    folder whose tokenizer puts none."""
    batch_tokens: int = 8192
    """Most tokens in one forward pass (a longer text goes alone)."""

    def check(self, where: str) -> None:
        """As LengthPerplexitySettings.check."""
        lengths = list(self.lengths)
        if not lengths or lengths[0] < SHORTEST_RULER or lengths != sorted(set(lengths)):
            raise ConfigError(f"{where}.lengths = {lengths}: must be rising numbers of tokens, from {SHORTEST_RULER}.")
        if not self.tasks or len(set(self.tasks)) != len(self.tasks):
            raise ConfigError(f"{where}.tasks = {list(self.tasks)}: each once, at least one.")
        at_least_one(self, where, "limit", "batch_tokens")
        if self.num_fewshot is not None and self.num_fewshot < 0:
            raise ConfigError(f"{where}.num_fewshot = {self.num_fewshot}: must be 0 or more.")


@dataclass(frozen=True)
class SuiteSettings:
    """A suite is a field here, a file of that name in `conf/suite/`, and an entry in `evaluate.SUITES`.

    Suites named after tasks (needle, copy, ...) share the field `recall`.
    """

    length_perplexity: LengthPerplexitySettings
    attention: AttentionSettings
    cost: CostSettings
    recall: RecallSettings
    ruler: RulerSettings
    harness: HarnessSettings


SUITES = tuple(SuiteSettings.__dataclass_fields__)


@dataclass(frozen=True)
class EvalConfig:
    """One call of eval.py."""

    runs: tuple[str, ...]
    """Run folders, checkpoint files, or patterns of them."""
    suites: tuple[str, ...]
    suite: SuiteSettings
    out: str
    """Folder of the comparison: report.html, report.md, table.csv, figures/."""
    variants: dict[str, Any] = field(default_factory=dict)
    """By name, layer fields by kind: the same weights under another setting (evaluation/variants.py)."""
    documents: str | None = None
    """Text to read instead of each run's held-out documents: a file or folder as data.path takes it."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["fp32", "bf16"] = "fp32"
    num_threads: int | None = None
    again: bool = False
    """Measure again what the run's eval folder already holds under equal settings."""


def compose_eval(overrides: Sequence[str]) -> EvalConfig:
    """The settings of ``python eval.py OVERRIDES``; ConfigError for anything that cannot be honoured."""
    from minillm.config.compose import compose_plain

    plain = compose_plain(overrides, config_name="eval")
    for key in ("runs", "suites"):
        if isinstance(plain.get(key), str):
            plain[key] = [plain[key]]
    if not plain.get("runs"):
        raise ConfigError("runs: nothing to evaluate. Give run folders or checkpoints: runs='[outputs/a,outputs/b]'.")
    return _typed(plain)


def default_config(runs: Sequence[str], suites: Sequence[str]) -> EvalConfig:
    """The shipped settings for these runs: paths are taken as they are, whatever characters they hold."""
    from minillm.config.compose import compose_plain

    return _typed({**compose_plain([], config_name="eval"), "runs": list(runs), "suites": list(suites)})


def _typed(plain: dict[str, Any]) -> EvalConfig:
    config = fields.build(EvalConfig, {k: v for k, v in plain.items() if k != "choices"}, "eval")
    check(config)
    return config


def check(config: EvalConfig) -> None:
    """Ranges that the types do not say."""
    if not config.suites:
        raise ConfigError(f"suites: none given. Known: {', '.join(SUITES)}.")
    for name in config.suites:
        if name not in SUITES and name not in (known := [*SUITES, *task_names()]):
            raise ConfigError(f"suites: unknown suite '{name}'.{nearest(name, known)} Known: {', '.join(known)}.")
    for name in SUITES:
        getattr(config.suite, name).check(f"suite.{name}")
    variants.check(config.variants)
    if config.num_threads is not None and config.num_threads < 1:
        raise ConfigError(f"num_threads = {config.num_threads}: must be 1 or more.")


def task_names() -> list[str]:
    """The suites that share `suite.recall`; `recall` itself stands for the task that a run was trained on."""
    from minillm.data.tasks import TASKS  # imported late: --help and most errors need no torch

    return list(TASKS)


def settings_of(suite: SuiteSettings, name: str) -> Any:
    """The settings of the suite `name`."""
    return getattr(suite, name if name in SUITES else "recall")


def rising_multiples(lengths: Sequence[int], where: str) -> None:
    """Raise ConfigError unless `lengths` are rising whole numbers from 1 on."""
    if not lengths or min(lengths) < 1 or list(lengths) != sorted(set(lengths)):
        raise ConfigError(f"{where} = {list(lengths)}: must be rising multiples of the training length, from 1.")


def at_least_one(settings: Any, where: str, *names: str) -> None:
    """Raise ConfigError where one of these fields is given and below 1."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise ConfigError(f"{where}.{name} = {value}: must be 1 or more.")
