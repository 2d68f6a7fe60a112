"""
Tokens without a model: a tokenizer of four bytes a token, and replies made from the prompt.

What a simulated reply says does not matter; what matters is that equal text gives equal tokens,
that text which grows at its end keeps the tokens it had, and that equal prompts get equal replies.
Each message of a chat starts at a token of its own and every generated word is one token wide, so
a conversation that sends a reply back finds the blocks that the reply filled, as with a real model.

How tokens are made: a text is cut, as UTF-8, into pieces of four bytes, and the four bytes of a
piece, read as a number with its lowest byte first, are the token; a last piece that is shorter is
filled up with zero bytes, which vanish when tokens become text again. So there are 2**32 tokens,
any list of numbers below that is a prompt, and a text has a quarter as many tokens as bytes, which
is about what tokenizers make of English. A reply walks a fixed pool of three-letter words, with a
space before each; where it starts and how far it steps comes from a hash of the prompt.
"""

import random
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import overload

import xxhash

BYTES_PER_TOKEN = 4
VOCABULARY_SIZE = 256**BYTES_PER_TOKEN

_SHORTEST_REPLY, _LONGEST_REPLY = 32, 256
_POOL_SIZE = 4093
"""A prime, so that walking the pool with any stride visits all of it."""
_WORDS = (
    " all and any ask bay bed big box boy bus buy can car cat cup cut day dog dry ear eat egg"
    " end eye fan far few fly for fun gas get hat her hot how ice ink job joy key kid law leg"
    " let lip low map men mix net new not now odd off oil old one our out own pan pay pen pot"
    " put ran red run sat sea see set she sit six sky sun tax tea ten the tie tin too toy try"
    " two use van war was way wet who why win yes yet you zoo"
)
"""What replies are made of: each word, with its space, is four bytes."""


def encode(text: str) -> "array[int]":
    """Return the tokens of a text; the last one is padded where the text ends within it."""
    raw = text.encode(errors="replace")
    return array("I", raw + bytes(-len(raw) % BYTES_PER_TOKEN))


def encode_chat(messages: Iterable[tuple[str, str]]) -> "array[int]":
    """Return the tokens of (role, content) messages and of the assistant's turn that follows."""
    tokens = array("I")
    for role, content in messages:
        tokens += encode(f"<{role}>")
        tokens += encode(content)
    return tokens + encode("<assistant>")


def decode(tokens: Iterable[int]) -> str:
    """
    Return the text of tokens, the padding left out.

    Tokens that no text has, or that cut a character in two, become replacement characters.
    """
    return array("I", tokens).tobytes().replace(b"\0", b"").decode(errors="replace")


def spell(token: int) -> bytes:
    """Return the text of a generated token: ASCII, with nothing that JSON would escape."""
    return token.to_bytes(BYTES_PER_TOKEN, "little")


_POOL = random.Random(0).choices(encode(_WORDS), k=_POOL_SIZE)
_ROUNDS = array("I", _POOL) * 64
"""The pool many times over: a slice of it is a walk, taken at once."""


class _Walk(Sequence[int]):
    """The tokens at some places of the pool, which begins again at its end."""

    __slots__ = ("_places",)

    def __init__(self, places: range) -> None:
        self._places = places

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[int]:
        return (_POOL[place % _POOL_SIZE] for place in self._places)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Walk) and self._places == other._places

    def __hash__(self) -> int:
        return hash(self._places)

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[int]: ...
    def __getitem__(self, at: int | slice) -> int | Sequence[int]:
        if isinstance(at, slice):
            return _Walk(self._places[at])
        return _POOL[self._places[at] % _POOL_SIZE]


class Reply:
    """What the simulated model would say to a prompt, for as long as it is let."""

    __slots__ = ("_start", "_stride", "natural_length")

    def __init__(self, prompt: "array[int]", seed: int = 0) -> None:
        digest = xxhash.xxh3_64_intdigest(prompt.tobytes(), seed=seed)
        digest, self._start = divmod(digest, _POOL_SIZE)
        digest, stride = divmod(digest, _POOL_SIZE - 1)
        self._stride = stride + 1
        self.natural_length = _SHORTEST_REPLY + digest % (_LONGEST_REPLY - _SHORTEST_REPLY + 1)
        """Where the model would stop by itself, in tokens."""

    def tokens(self, length: int) -> Sequence[int]:
        """Return the first `length` tokens, each made when it is looked at."""
        end = self._start + length * self._stride
        return _Walk(range(self._start, end, self._stride))

    def text(self, length: int) -> bytes:
        """Return the text of the first `length` tokens."""
        said = array("I")
        place = self._start
        while len(said) < length:
            walk = _ROUNDS[place :: self._stride]
            said += walk
            place = (place + len(walk) * self._stride) % _POOL_SIZE
        return said[:length].tobytes()
