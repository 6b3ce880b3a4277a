"""The tokenizer: byte-level BPE, trained on the training documents or loaded from a tokenizer.json.

One special token, the marker, begins each document and so ends the one before: `<|endoftext|>` unless the
configuration or the file says otherwise. Text that happens to spell it is encoded as text: a document holds the
marker once, whatever it says.

    tokenizer = Tokenizer.train(texts, vocab_size=2048)
    ids = tokenizer.encode("Fellow-citizens", bos=True)
    tokenizer.decode(ids)                                  # "Fellow-citizens"
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from minillm.config.schema import TokenizerConfig
from minillm.data.check import MIN_VOCAB_SIZE
from minillm.errors import ConfigError, MinillmError

if TYPE_CHECKING:
    from tokenizers import Tokenizer as RawTokenizer

MARKER = "<|endoftext|>"

# GPT-2's split, with every run bounded. Unbounded, a file without spaces is one word of many megabytes, over which
# BPE training and encoding take memory and time without end.
SPLIT = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}{1,32}| ?\p{N}{1,3}| ?[^\s\p{L}\p{N}]{1,32}|\s{1,32}(?!\S)|\s{1,32}"
CHUNK = 1 << 15
"""Characters given to the tokenizers library at once; it keeps about 100 bytes of bookkeeping for each."""

# Worker processes never tokenize; without this the library warns in each one that is forked.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")


def chunks(text: str, size: int = CHUNK) -> Iterator[str]:
    """Cut `text` into pieces of at most `size` characters, where white space begins: no token of ours crosses there.

    A piece without any such place is cut at `size`. An empty text is one empty piece.
    """
    start = 0
    while len(text) - start > size:
        cut = start + size
        while cut > start and (text[cut] not in " \n\t" or text[cut - 1].isspace()):
            cut -= 1
        cut = cut if cut > start else start + size
        yield text[start:cut]
        start = cut
    yield text[start:]


class Tokenizer:
    """Text to token ids and back. Wraps a `tokenizers.Tokenizer`, kept in `raw`."""

    def __init__(self, raw: RawTokenizer, bos_token: str | None = None) -> None:
        """Take over `raw`. `bos_token=None` finds the marker: what `raw` puts before a text, else `<|endoftext|>`.

        Raises MinillmError where there is no such token, or where `raw` does not give the same ids each time.
        """
        if getattr(raw.model, "dropout", None):
            raise MinillmError("The tokenizer has BPE dropout, so its ids change from call to call. Set it to null.")
        raw.no_truncation()
        raw.no_padding()
        self.bos_token = _find_marker(raw) if bos_token is None else bos_token
        bos_id = raw.token_to_id(self.bos_token)
        if bos_id is None:
            raise MinillmError(
                f"tokenizer.bos_token: {self.bos_token!r} is not in the tokenizer. "
                f"Allowed: one of its special tokens, {', '.join(_special(raw)) or 'but it has none'}."
            )
        self.bos_id: int = bos_id
        self.vocab_size: int = 1 + max(raw.get_vocab(with_added_tokens=True).values())
        """Rows that an embedding needs: the highest id, of added tokens too, and one."""
        raw.encode_special_tokens = True  # a marker spelt out in the text is text
        # tokenizer.json has no field for the marker; as in other models' files, its template says what comes first.
        raw.post_processor = _template(self.bos_token, bos_id)
        self.raw = raw
        # Only our own split is known to allow cutting a text; a tokenizer from elsewhere gets each text whole.
        self._may_cut = json.dumps(SPLIT) in json.dumps(json.loads(raw.to_str())["pre_tokenizer"])

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int, bos_token: str | None = None) -> Tokenizer:
        """Byte-level BPE. A corpus that runs out of repeated pairs gives fewer than `vocab_size` tokens."""
        from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
        from tokenizers import Tokenizer as RawTokenizer

        if vocab_size < MIN_VOCAB_SIZE:
            raise ConfigError(
                f"tokenizer.vocab_size: {vocab_size} is not allowed. "
                f"Allowed: {MIN_VOCAB_SIZE} (the 256 bytes and a marker) or more."
            )
        marker = bos_token or MARKER
        raw = RawTokenizer(models.BPE())
        raw.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        raw.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            min_frequency=2,
            special_tokens=[marker],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        raw.train_from_iterator((piece for text in texts for piece in chunks(text)), trainer)
        return cls(raw, marker)

    @classmethod
    def load(cls, path: str | Path, bos_token: str | None = None) -> Tokenizer:
        """Read a tokenizer.json: one of ours, or any of the `tokenizers` library."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise MinillmError(f"The tokenizer {path} cannot be read: {error}.") from error
        return cls.from_json(text, bos_token, where=f"The tokenizer {path}")

    @classmethod
    def from_json(cls, text: str, bos_token: str | None = None, where: str = "The tokenizer") -> Tokenizer:
        """The same from the file's content, as checkpoints hold it; `where` is what errors call it."""
        from tokenizers import Tokenizer as RawTokenizer

        try:
            raw = RawTokenizer.from_str(text)
        except Exception as error:  # the library raises bare Exception
            raise MinillmError(f"{where} is not a tokenizer.json of the tokenizers library: {error}.") from error
        return cls(raw, bos_token)

    def to_json(self) -> str:
        """The content of tokenizer.json."""
        return self.raw.to_str()

    def save(self, path: str | Path) -> None:
        """Write tokenizer.json, in one rename: a reader never finds half of it."""
        path = Path(path)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        temporary.write_text(self.to_json(), encoding="utf-8")
        temporary.replace(path)

    def encode(self, text: str, bos: bool = False) -> list[int]:
        """Ids of `text`; with `bos` the marker stands first, as in training documents."""
        return self.encode_many([text], bos)[0].tolist()

    def encode_many(self, texts: Sequence[str], bos: bool = False) -> list[np.ndarray]:
        """Ids of each text, (n,) int64, with all cores. The same as one by one.

        Raises:
            MinillmError: a text holds what this vocabulary cannot write, such as a word that a task does not have.
        """
        pieces = [list(chunks(text)) if self._may_cut else [text] for text in texts]
        try:
            encoded = iter(self.raw.encode_batch_fast([p for ps in pieces for p in ps], add_special_tokens=False))
        except Exception as error:  # the library raises bare Exception
            bad = next((text for text in texts if not self._writes(text)), None)
            if bad is None:
                raise
            start = f"{bad[:40]!r}{' ...' if len(bad) > 40 else ''}"
            raise MinillmError(f"The tokenizer cannot encode the text {start}: {error}.") from None
        head = [np.array([self.bos_id], dtype=np.int64)] if bos else []
        return [np.concatenate([*head, *(np.array(next(encoded).ids, dtype=np.int64) for _ in ps)]) for ps in pieces]

    def _writes(self, text: str) -> bool:
        try:
            self.raw.encode(text, add_special_tokens=False)
        except Exception:  # as above
            return False
        return True

    def token_bytes(self) -> np.ndarray | None:
        """Bytes of UTF-8 that each id stands for, (vocab_size,) int64; 0 for special tokens and unused ids.

        Exact for byte-level tokenizers, whose tokens are bytes written as characters; None for others, of which a
        token may be other bytes in other places.
        """
        sizes = np.zeros(self.vocab_size, dtype=np.int64)
        if "ByteLevel" not in json.dumps(json.loads(self.raw.to_str())["decoder"]):
            return None
        special = set(_special(self.raw))
        for token, number in self.raw.get_vocab(with_added_tokens=True).items():
            if token not in special:
                sizes[number] = len(token)
        for number, added in self.raw.get_added_tokens_decoder().items():
            if not added.special:  # written as it is, not byte by byte
                sizes[number] = len(added.content.encode("utf-8"))
        return sizes

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Text of `ids`. Bytes that form no character, as a cut in the middle of one leaves, become U+FFFD."""
        return self.raw.decode([int(i) for i in ids], skip_special_tokens=skip_special_tokens)


def asked_vocab_size(config: TokenizerConfig) -> int:
    """The vocabulary to plan a model with before the tokenizer exists: what is asked, or what the file holds."""
    return load_from_config(config).vocab_size if config.vocab_size is None else config.vocab_size


def load_from_config(config: TokenizerConfig) -> Tokenizer:
    """The tokenizer of tokenizer.source=file."""
    if config.path is None:
        raise ConfigError("tokenizer.path: missing. tokenizer=file needs the path of a tokenizer.json.")
    return Tokenizer.load(Path(config.path).expanduser(), config.bos_token)


def _special(raw: RawTokenizer) -> list[str]:
    return [token.content for token in raw.get_added_tokens_decoder().values() if token.special]


def _find_marker(raw: RawTokenizer) -> str:
    """What `raw` puts before an empty text, where that is a single special token; else `<|endoftext|>`."""
    added = raw.encode("").tokens
    return added[0] if len(added) == 1 and added[0] in _special(raw) else MARKER


def _template(marker: str, marker_id: int) -> Any:
    """Puts the marker first when special tokens are asked for."""
    from tokenizers.processors import TemplateProcessing

    try:
        return TemplateProcessing(
            single=[marker, "$A"], pair=[marker, "$A", "$B:1"], special_tokens=[(marker, marker_id)]
        )
    except ValueError as error:
        raise MinillmError(f"tokenizer.bos_token: {marker!r} cannot be a marker: {error}.") from None
