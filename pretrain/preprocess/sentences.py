"""``--split-sentences``: NLTK's Punkt, as Megatron's tool uses it."""

from __future__ import annotations

from collections.abc import Callable

from accel_bridge.process.extras import install

from .errors import UsageError

#: Characters given to Punkt at once; from Megatron.
_PIECE_CHARACTERS = 1_000_000

#: Where a sentence may end, with the white space after it part of it: ``--keep-newlines``.
#: Punkt's own form leaves that space out.
_KEEP_SPACE = r"\S*%(SentEndChars)s\s*(?=(?P<after_tok>%(NonWord)s|(?P<next_tok>\S+)))"


def build_splitter(language: str, *, keep_newlines: bool) -> Callable[[str], list[str]]:
    """What splits a text into sentences.

    :raises UsageError: nltk or its data for ``language`` is not installed.
    """
    try:
        from nltk.tokenize.punkt import PunktLanguageVars, PunktSentenceTokenizer, PunktTokenizer
    except ImportError as error:
        raise UsageError(
            "--split-sentences needs nltk 3.9 or newer",
            evidence=str(error),
            next=install("sentences"),
        ) from error
    try:
        tokenizer = PunktTokenizer(language)
    except (LookupError, ValueError) as error:
        raise UsageError(
            f"NLTK has no sentence model for {language!r}",
            evidence=str(error)
            if isinstance(error, ValueError)
            else "punkt_tab is in none of the folders of NLTK_DATA and nltk.data.path",
            next="python -m nltk.downloader punkt_tab, and set NLTK_DATA to where it is",
        ) from error
    if keep_newlines:
        variables = type("KeepSpace", (PunktLanguageVars,), {"_period_context_fmt": _KEEP_SPACE})
        tokenizer = PunktSentenceTokenizer(tokenizer._params, lang_vars=variables())

    def split(text: str) -> list[str]:
        pieces = range(0, len(text), _PIECE_CHARACTERS)
        return [
            sentence
            for start in pieces
            for sentence in tokenizer.tokenize(text[start : start + _PIECE_CHARACTERS])
        ]

    return split
