"""Which custom_ids of a file stand twice, found in 8 bytes an id.

The first reading of a file notes a 64-bit hash of each id. Only where two hashes are equal is the file read again, and
then those ids alone are compared, exactly: equal hashes may belong to different ids.
"""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence

# Looked through one after the other, so that only one at a time takes more memory than its hashes.
_BUCKETS = 256


class Hashes:
    """The ids of a first reading. `hashed` gives 64 bits, signed: Python's own, which no file can foresee."""

    def __init__(self, hashed: Callable[[str], int] = hash) -> None:
        self._hashed = hashed
        self._buckets = [array("q") for _ in range(_BUCKETS)]

    def note(self, custom_id: str) -> bool:
        """False: whether the id stands twice is not known yet."""
        value = self._hashed(custom_id)
        self._buckets[value % _BUCKETS].append(value)
        return False

    def repeated(self) -> Sequence[int]:
        """The hashes noted more than once, in rising order. Forgets all of them."""
        found: list[int] = []
        while self._buckets:
            bucket = self._buckets.pop()
            if len(set(bucket)) < len(bucket):
                found += [value for value, times in Counter(bucket).items() if times > 1]
        return array("q", sorted(found))


class Suspects:
    """The ids of a second reading: of those whose hash is among `repeated`, which were seen before."""

    def __init__(self, repeated: Sequence[int], hashed: Callable[[str], int] = hash) -> None:
        self._repeated = repeated
        self._hashed = hashed
        self._seen: set[bytes] = set()

    def note(self, custom_id: str) -> bool:
        """Whether the id was noted before."""
        value = self._hashed(custom_id)
        at = bisect_left(self._repeated, value)
        if at == len(self._repeated) or self._repeated[at] != value:
            return False
        digest = hashlib.blake2b(custom_id.encode(), digest_size=16).digest()
        before = len(self._seen)
        self._seen.add(digest)
        return len(self._seen) == before
