"""The corpus: Jane Austen's six novels as tokens, and the byte-level BPE vocabulary made from them.

    apt-get download r-cran-janeaustenr && python3 corpus.py r-cran-janeaustenr_*.deb WORK

The novels (public domain: their author died in 1817) come from the texts of Project Gutenberg as
the R package `janeaustenr` (MIT licence) holds them, which Debian ships. No R is needed to read it.
"""

import collections
import hashlib
import json
import pathlib
import re
import struct
import subprocess
import sys
import zlib

VOCAB_SIZE = 2048
END = 0  # "<|endoftext|>": between chapters, and before every text
# Of the chapters as one text; another edition would give another model.
SHA256 = "869933c06e21a05b72a7236b223b813b9d5c1fa77abe8da5361cbc7a0e25d231"
# How GPT-2 cuts text into words, for text without letters and digits beyond ASCII.
WORDS = re.compile(
    r"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+"
)


def vectors_of_text(database):
    """Each character vector of an R lazy-load database: lengths and compressed XDR records."""
    while database:
        inflate = zlib.decompressobj()
        record = inflate.decompress(database[4:])
        assert len(record) == struct.unpack(">I", database[:4])[0], "not a database of R"
        database = inflate.unused_data
        at = 2  # after "X\n"

        def integer():
            nonlocal at
            at += 4
            return struct.unpack_from(">i", record, at - 4)[0]

        version, _, _ = integer(), integer(), integer()
        if version == 3:
            encoding_bytes = integer()
            at += encoding_bytes
        assert integer() & 255 == 16, "not a character vector"
        lines = []
        for _ in range(integer()):
            _flags, size = integer(), integer()
            lines.append(record[at : at + size].decode())
            at += size
        yield lines


def chapters(lines):
    """Chapters of a novel, each a text with one paragraph a line; headings and titles are left."""
    text = "\n".join(lines).replace("_", "")
    for chapter in re.split(r"(?m)^\s*(?:CHAPTER|Chapter) .*$", text)[1:]:
        chapter = re.sub(r"(?m)^\s*(VOLUME .*|THE END|Finis|FINIS|\[.*\])\s*$", "", chapter)
        paragraphs = (" ".join(part.split()) for part in re.split(r"\n\s*\n", chapter))
        yield "".join(paragraph + "\n" for paragraph in paragraphs if paragraph)


def merges(counts, size):
    """Byte pair encoding: the pairs of tokens that make tokens 257 to `size`, most frequent first.

    Sennrich et al. 2016. `counts` says how often each word occurs. Bytes are tokens 1 to 256.
    """
    words = [[byte + 1 for byte in word.encode()] for word in counts]
    times = list(counts.values())
    pairs, where = collections.Counter(), collections.defaultdict(set)
    for index, word in enumerate(words):
        for pair in zip(word, word[1:]):
            pairs[pair] += times[index]
            where[pair].add(index)
    found = []
    for token in range(257, size):
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        found.append(best)
        for index in where.pop(best):
            word = words[index]
            for pair in zip(word, word[1:]):
                pairs[pair] -= times[index]
            words[index] = word = merge(word, best, token)
            for pair in zip(word, word[1:]):
                pairs[pair] += times[index]
                where[pair].add(index)
        del pairs[best]
    return found


def merge(word, pair, token):
    """The word with each such pair replaced by the token."""
    out, at = [], 0
    while at < len(word):
        if tuple(word[at : at + 2]) == pair:
            out.append(token)
            at += 2
        else:
            out.append(word[at])
            at += 1
    return out


class Tokenizer:
    """Text to tokens."""

    def __init__(self, pairs):
        self.ranks = {tuple(pair): 257 + index for index, pair in enumerate(pairs)}
        self.cache = {}

    def encode(self, text):
        """Tokens of a text."""
        return [token for word in WORDS.findall(text) for token in self.word(word)]

    def word(self, word):
        """Tokens of a word: the earliest merge first."""
        if word not in self.cache:
            tokens = [byte + 1 for byte in word.encode()]
            while len(tokens) > 1:
                known = [self.ranks.get(pair, 1 << 30) for pair in zip(tokens, tokens[1:])]
                token = min(known)
                if token == 1 << 30:
                    break
                at = known.index(token)
                tokens = merge(tokens, tuple(tokens[at : at + 2]), token)
            self.cache[word] = tokens
        return self.cache[word]


def main(package, folder):
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["dpkg-deb", "-x", package, folder / "deb"], check=True)
    (database,) = (folder / "deb").rglob("data/Rdata.rdb")
    all_chapters = [
        chapter for lines in vectors_of_text(database.read_bytes()) for chapter in chapters(lines)
    ]
    digest = hashlib.sha256("\f".join(all_chapters).encode()).hexdigest()
    assert digest == SHA256, f"the texts have sha256 {digest} instead of {SHA256}"
    # Every 20th chapter is held out.
    parts = {"train": [], "test": []}
    for index, chapter in enumerate(all_chapters):
        parts["test" if index % 20 == 10 else "train"].append(chapter)
    counts = collections.Counter(w for text in parts["train"] for w in WORDS.findall(text))
    pairs = merges(counts, VOCAB_SIZE)
    tokenizer = Tokenizer(pairs)
    out = {"merges": pairs}
    for part, texts in parts.items():
        out[part] = [token for text in texts for token in [END, *tokenizer.encode(text)]]
        (folder / f"{part}.txt").write_text("".join(texts))
        chars = sum(map(len, texts))
        print(f"{part}: {len(texts)} chapters, {chars} characters, {len(out[part])} tokens")
    (folder / "corpus.json").write_text(json.dumps(out))


if __name__ == "__main__":
    main(sys.argv[1], pathlib.Path(sys.argv[2]))
