"""Where the fast engine may be used: proof at start, and texts that must not go to it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

import numpy as np

from .engines import Engine, GigatokenEngine, HuggingFaceEngine, Tokens

#: Versions on which every code point was compared; see tests/preprocess/test_guard.py.
VERIFIED_VERSIONS = {"gigatoken": "0.10.0", "tokenizers": "0.23.3"}

#: Word patterns besides GPT-2's on which the same code points, and no others, differ: those of
#: Llama 3 and of Qwen 2, as they stand in their tokenizer.json.
VERIFIED_PATTERNS = tuple(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    + digits
    + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    for digits in ("{1,3}", "")
)

#: Code points whose Unicode class gigatoken (newer tables) and tokenizers see differently:
#: a text with one of them may be split into words differently. Inclusive ranges.
UNICODE_DIFFERENCES: tuple[tuple[int, int], ...] = (
    (0x88F, 0x88F),
    (0xC5C, 0xC5C),
    (0xCDC, 0xCDC),
    (0xA7CE, 0xA7CF),
    (0xA7D2, 0xA7D2),
    (0xA7D4, 0xA7D4),
    (0xA7F1, 0xA7F1),
    (0x10940, 0x10959),
    (0x10EC5, 0x10EC7),
    (0x11DB0, 0x11DDB),
    (0x11DE0, 0x11DE9),
    (0x16EA0, 0x16EB8),
    (0x16EBB, 0x16ED3),
    (0x16FF2, 0x16FF6),
    (0x187F8, 0x187FF),
    (0x18D09, 0x18D1E),
    (0x18D80, 0x18DF2),
    (0x1E6C0, 0x1E6DE),
    (0x1E6E0, 0x1E6E2),
    (0x1E6E4, 0x1E6E5),
    (0x1E6E7, 0x1E6ED),
    (0x1E6F0, 0x1E6F4),
    (0x1E6FE, 0x1E6FF),
    (0x2B73A, 0x2B73F),
    (0x2CEA2, 0x2CEAD),
    (0x323B0, 0x33479),
)

#: Texts on which the engines must agree before the fast one is used at all.
PROBES: tuple[str, ...] = (
    "",
    " ",
    "a",
    "Hello world! It's we'll I'd they've O'CLOCK 'tis\tdon't",
    "  leading and trailing  ",
    "line\nline\r\nline\r\n\n\n  indented\n\ttab\x00nul\x7f",
    "1 12 123 1234 12345 ½ ٣ ४ Ⅷ ²",
    "def f(x):\n    return {'a': x[0] != 1, \"b\": x ** 2}  # comment\n",
    "https://example.org/a_b?c=d&e=f%20#g <div class='x'>&amp;</div>",
    "Zażółć gęślą jaźń, naïve café, Straße, ﬁ ligature, e\u0301 combining",
    "Привет мир, Γειά σου, שלום, مرحبا بالعالم, नमस्ते दुनिया, สวัสดีชาวโลก",
    "你好，世界。機器學習，深度学习！　全角空格",
    "こんにちは世界、カタカナ、한국어 문장입니다.",
    "emoji 😀👩‍👩‍👧‍👦🏳️‍🌈🇩🇪 ✔︎ ☃ ∑∫√ € ™ ©",
    "\u00a0\u2003\u2028\u2029\u200b\u3000\ufeff\u0085 spaces",
    "<|endoftext|>a<|endoftext|><|endoftext|> b <|endoftext|",
    "<s>[INST] x [/INST]</s><pad><unk><|im_start|>user\n<|im_end|>",
    "𝕬𝖇𝖈 𐍈 𠜎𠜱 \U0010fffd \ue000",
)


#: First byte of every code point beyond the basic plane that a range here can have.
_FOUR_BYTES = b"\xf0"


#: Longer texts go to the exact engine in pieces.
_LONG_CHARACTERS = 1 << 20
#: Between a letter and white space or punctuation. All verified patterns end a word there, and
#: none looks back, so what follows is cut the same with and without what went before.
_CUTS = re.compile("(?<=[A-Za-z\u4e00-\u9fa5])(?=[ \\n，。！？、])")


class Guard:
    """Finds the texts that hold a code point of ``ranges``."""

    def __init__(self, ranges: Sequence[tuple[int, int]]) -> None:
        classes = "".join(
            f"{re.escape(chr(first))}-{re.escape(chr(last))}" for first, last in ranges
        )
        self._pattern = re.compile(f"[{classes}]") if ranges else None
        # The first UTF-8 bytes tell most text apart without looking at characters. One byte is
        # looked for first: that is a memchr, many times faster than looking for two.
        self._prefixes: dict[bytes, list[bytes]] = {}
        for first, last in ranges:
            for code in range(first, min(last, 0xFFFF) + 1):
                lead, prefix = chr(code).encode()[:1], chr(code).encode()[:2]
                if prefix not in self._prefixes.setdefault(lead, []):
                    self._prefixes[lead].append(prefix)
            if last > 0xFFFF:
                self._prefixes[_FOUR_BYTES] = [_FOUR_BYTES]

    def flagged(self, texts: Sequence[str], encoded: Sequence[bytes]) -> list[int]:
        """Indices of the texts that must go to the exact engine.

        :param encoded: the same texts in UTF-8.
        """
        if self._pattern is None:
            return []
        candidates: set[int] = set()
        for lead, prefixes in self._prefixes.items():
            led = [index for index, data in enumerate(encoded) if lead in data]
            for prefix in prefixes:
                candidates.update([index for index in led if prefix in encoded[index]])
        search = self._pattern.search
        return sorted(index for index in candidates if search(texts[index]))


class GuardedEngine:
    """The fast engine, with the exact one for texts on which they may differ."""

    def __init__(self, fast: GigatokenEngine, exact: HuggingFaceEngine, guard: Guard) -> None:
        self._fast = fast
        self._exact = exact
        self._guard = guard
        # A special token must not be cut in two.
        self._can_cut = not any(_CUTS.search(token) for token in exact.special_tokens())
        self.counts = {"gigatoken": 0, "tokenizers": 0}

    def encode(self, texts: Sequence[str]) -> list[Tokens]:
        encoded = [text.encode() for text in texts]
        flagged = self._guard.flagged(texts, encoded)
        result = self._fast.encode_utf8(encoded)
        if flagged:
            for index in flagged:
                result[index] = self._exactly(texts[index])
        self.counts["gigatoken"] += len(texts) - len(flagged)
        self.counts["tokenizers"] += len(flagged)
        return result

    def _exactly(self, text: str) -> Tokens:
        if self._can_cut and len(text) > _LONG_CHARACTERS:
            return self._exact.encode_in_pieces(text, _CUTS)
        return self._exact.encode([text])[0]

    def decode(self, ids: Sequence[int]) -> str:
        return self._exact.decode(ids)


def unverified() -> str | None:
    """What speaks against :data:`UNICODE_DIFFERENCES` with the installed packages, or ``None``."""
    for name, known in VERIFIED_VERSIONS.items():
        try:
            installed = version(name)
        except PackageNotFoundError:
            return f"{name} is not installed; pip install {name}=={known}"
        if installed != known:
            return f"{name} is {installed}, and {known} was verified"
    return None


def first_difference(fast: GigatokenEngine, exact: Engine) -> str | None:
    """The first probe that two engines tokenize differently, or ``None``."""
    ours = fast.encode_utf8([text.encode() for text in PROBES])
    for text, one, other in zip(PROBES, ours, exact.encode(PROBES), strict=True):
        if not np.array_equal(one, other):
            return text
    return None
