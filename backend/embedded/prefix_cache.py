"""Keys and values of prompts already read, kept so that what they share is read only once.

Bounded in bytes, least recently used out first. Entries are immutable: a pass that works on one
holds a reference, so evicting it only takes it off the list. Token ids are compared exactly; there
are no hashes that could collide. Belongs to one thread.

Two kinds of prompt, told apart by their ids alone:

* a *branch* continues a whole entry by at most `MAX_BRANCH_TOKENS` (a question after its state).
  It is read and forgotten, so questions never push states out of the cache, and the next time the
  reused part is exactly the prefix again;
* anything else reuses what it has in common with an entry and becomes an entry itself.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from backend.embedded.model import Ids, KeyValues
from backend.embedded.quantisation import Floats

MAX_BRANCH_TOKENS = 2048


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """A prompt that was read.

    Attributes:
        ids: its token ids.
        state: keys and values of all of them.
        hidden: normalised hidden state at its last token, `(1, width)`.
    """

    ids: Ids
    state: KeyValues
    hidden: Floats

    @property
    def nbytes(self) -> int:
        """Memory, in bytes."""
        return self.ids.nbytes + self.state.nbytes + self.hidden.nbytes


@dataclass(frozen=True, slots=True)
class Match:
    """What is known of a prompt.

    Attributes:
        entry: the entry that serves it best, if any.
        tokens: how many leading tokens need not be read; always leaves at least one.
        is_branch: whether the prompt continues the whole entry (or is the entry).
    """

    entry: Entry | None
    tokens: int
    is_branch: bool

    @property
    def repeats(self) -> bool:
        """Whether the prompt is the entry itself, so that nothing at all has to be read."""
        return self.is_branch and self.entry is not None and self.tokens < len(self.entry.ids)


_NOTHING = Match(None, 0, False)


class PrefixCache:
    """The entries, the least recently used first.

    Attributes:
        nbytes: memory of all entries, in bytes.
    """

    def __init__(self, limit: int) -> None:
        """Start empty, to hold at most `limit` bytes; 0 switches the cache off."""
        self._limit = limit
        self._entries: OrderedDict[bytes, Entry] = OrderedDict()
        self.nbytes = 0

    def __len__(self) -> int:
        """Number of entries."""
        return len(self._entries)

    def match(self, ids: Ids) -> Match:
        """Find the entry that shares most with a prompt, a whole one if possible.

        Args:
            ids: the prompt, at least one token.
        """
        best = _NOTHING
        for entry in self._entries.values():
            shared = common_length(entry.ids, ids)
            extension = len(ids) - shared
            whole = shared == len(entry.ids) and extension <= MAX_BRANCH_TOKENS
            tokens = min(shared, len(ids) - 1)
            if tokens and (whole, tokens) > (best.is_branch, best.tokens):
                best = Match(entry, tokens, whole)
        return best

    def touch(self, entry: Entry) -> None:
        """Make an entry the most recently used."""
        key = entry.ids.tobytes()
        if key in self._entries:
            self._entries.move_to_end(key)

    def store(self, ids: Ids, state: KeyValues, hidden: Floats) -> None:
        """Keep a prompt that was read, at the price of the least recently used ones.

        A prompt larger than the whole cache is not kept, and costs nobody his place. Nor is one of
        a single token, as health probes send: it would save nothing, and make a branch, which is
        forgotten, of every state that begins with that token.
        """
        entry = Entry(ids, state, hidden)
        if entry.nbytes > self._limit or len(ids) == 1:
            return
        self._forget(ids.tobytes())
        while self.nbytes + entry.nbytes > self._limit:
            self._forget(next(iter(self._entries)))
        self._entries[ids.tobytes()] = entry
        self.nbytes += entry.nbytes

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self.nbytes = 0

    def _forget(self, key: bytes) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.nbytes -= entry.nbytes


def common_length(left: Ids, right: Ids) -> int:
    """Number of leading tokens two prompts have in common."""
    length = min(len(left), len(right))
    different = left[:length] != right[:length]
    return int(different.argmax()) if different.any() else length


def as_ids(tokens: Sequence[int]) -> Ids:
    """Token ids as the array the cache compares."""
    return np.asarray(tokens, np.int64)
