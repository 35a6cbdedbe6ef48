"""Finds the few lines of a block that can be news, where no two lines are alike.

Words are told by their first four bytes, two and two, through a table that numpy looks up for every byte at once
(the idea of Hyperscan's Teddy): a few nanoseconds a byte, where a regular expression of a hundred words takes
fifty.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

# Bits of half a table's entry: words that share one are told apart a step later. Words of less than four bytes match
# more than they say, and have bits of their own.
GROUPS, SHORT = 16, 4


class Sieve:
    """Over the words of which a line must hold one.

    >>> Sieve([b"Error", b"oad"]).lines(b"all is well\\nan Error\\n")
    [1]
    """

    def __init__(self, words: Iterable[bytes]):
        self._words = tuple(sorted(words, key=lambda word: (len(word) > 3, word)))
        short = sum(len(word) < 4 for word in self._words)
        self._table = np.zeros(1 << 16, np.uint32)      # of two bytes: low half as a word's first, high as its second
        for n, word in enumerate(self._words):
            group = n * SHORT // short if n < short else \
                SHORT + (n - short) * (GROUPS - SHORT) // (len(self._words) - short)
            self._table[_pairs(word[:2])] |= np.uint32(1 << group)
            self._table[_pairs(word[2:4])] |= np.uint32(1 << GROUPS + group)
        heads = {int.from_bytes(word[:4], "little"): word[:4] for word in self._words[short:]}
        self._heads = np.array([*sorted(heads), 1 << 32], np.uint64)
        self._of_head = [tuple(w for w in self._words if w[:4] == heads[head]) for head in sorted(heads)]
        self._fifth = np.zeros((len(heads) + 1, 256), bool)     # of a head: the bytes that may follow
        for n, found in enumerate(self._of_head):
            for word in found:
                self._fifth[n, word[4] if len(word) > 4 else slice(None)] = True

    def lines(self, text: bytes) -> list[int]:
        """Numbers of the lines of `text`, from 0, that hold a word."""
        data = np.frombuffer(text + b"\n" * (6 + len(text) % 2), np.uint8)
        even, odd = self._starts(data.view("<u2")), self._starts(data[1:-1].view("<u2"))
        at = np.concatenate((2 * even[0], 2 * odd[0] + 1))
        order = np.argsort(at)
        at, which = at[order], np.concatenate((even[1], odd[1]))[order]
        lines = np.searchsorted(np.flatnonzero(data == ord("\n")), at)
        found, last = [], -1
        for line, start, n in zip(lines.tolist(), at.tolist(), which.tolist(), strict=True):
            if line != last and text.startswith(self._words if n < 0 else self._of_head[n], start):
                found.append(last := line)
        return found

    def _starts(self, pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(where words may begin, the number of its head or -1: any word)."""
        groups = np.take(self._table, pairs, mode="wrap")   # nothing to wrap; the check of bounds is what costs
        groups = groups[:-2] & (groups[1:-1] >> np.uint32(GROUPS))
        at = np.flatnonzero(groups != 0)
        fours = pairs[at] + (pairs[at + 1].astype(np.uint64) << np.uint64(16))
        head = np.searchsorted(self._heads, fours)
        short = groups[at] < 1 << SHORT
        known = (self._heads[head] == fours) & self._fifth[head, pairs[at + 2] & 255]
        return at[short | known], np.where(short, -1, head)[short | known]


def _pairs(two: bytes) -> np.ndarray:
    """Indices of all pairs that begin with these bytes: one of two bytes, 256 of one, all of none."""
    low, high = (np.array([two[i]]) if i < len(two) else np.arange(256) for i in (0, 1))
    return (low[:, None] + 256 * high[None, :]).ravel()
