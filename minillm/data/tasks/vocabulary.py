"""A task's vocabulary as a tokenizer: a token is a word between spaces, and there are no others.

tokenizer = word_tokenizer(task.vocabulary)
tokenizer.encode("k3 v1 v7", bos=True)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minillm.data.tokenizer import Tokenizer


def word_tokenizer(words: Sequence[str]) -> Tokenizer:
    """The tokenizer whose ids are the places of `words`; the first of them is the start marker."""
    from tokenizers import AddedToken, models, pre_tokenizers
    from tokenizers import Tokenizer as RawTokenizer

    from minillm.data.tokenizer import Tokenizer

    raw = RawTokenizer(models.WordLevel({word: i for i, word in enumerate(words)}))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    raw.add_special_tokens([AddedToken(words[0], special=True, normalized=False)])
    return Tokenizer(raw, words[0])


def unknown(words: Sequence[str], text: str) -> list[str]:
    """The words of `text` that are not in the vocabulary, each once."""
    return [word for word in dict.fromkeys(text.split()) if word not in words]
