"""Which tokens of a document a far context helps to predict: a proxy that asks no model.

Most tokens are predicted from the few before them, so the mean loss hides what a long context gives. LongPPL (arXiv
2410.23771) picks key tokens by a strong model's loss with and without the far context. Here a token is a key token if
it completes an n-gram that stood in the document before, and last so far back that a short window cannot hold it. The
set depends on the text and the training length alone, so it is the same for every model and length.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Int


def key_tokens(ids: Int[np.ndarray, "T"], n: int, farther_than: int) -> Bool[np.ndarray, "T"]:
    """True at token j if ids[j-n+1 : j+1] stood in the document before, and last ended more than `farther_than` tokens
    before j."""
    last: dict[tuple[int, ...], int] = {}
    found = np.zeros(len(ids), dtype=bool)
    tokens = ids.tolist()
    for j in range(n - 1, len(tokens)):
        gram = tuple(tokens[j - n + 1 : j + 1])
        before = last.get(gram)
        found[j] = before is not None and j - before > farther_than
        last[gram] = j
    return found
