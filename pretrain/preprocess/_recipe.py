"""How to make an encoder: all that another process or machine needs for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from accel_bridge.process.extras import install

from ._arguments import Arguments
from ._handler_encoder import HandlerEncoder, token_ids
from ._prompt_templates import PromptTemplate
from .build import build_engine
from .encoder import BlockEncoder, Encoder
from .engines import id_type
from .errors import TokenizerError, UsageError
from .tokenizers import TokenizerSpec

# ``--split-sentences``: NLTK's Punkt, as Megatron's tool uses it.

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
            else "punkt_tab is in none of the directories of NLTK_DATA and nltk.data.path",
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


@dataclass(frozen=True)
class EncoderRecipe:
    """A tokenizer's files and the command line that decides what becomes of a document.

    :raises TokenizerError: there is no end-of-document token to append.
    """

    arguments: Arguments
    spec: TokenizerSpec
    template: PromptTemplate | None = None

    def __post_init__(self) -> None:
        spec = self.spec
        if not self.arguments.append_eod:
            return
        if spec.eod is None:
            raise TokenizerError(
                "--append-eod, and the tokenizer names no end-of-document token",
                evidence=f"{self.arguments.tokenizer.tokenizer_type}: no eos_token in its files",
                next="name it with --eod-token TOKEN",
            )
        if not 0 <= spec.eod <= np.iinfo(id_type(spec.vocab_size)).max:
            raise TokenizerError(
                "the end-of-document token is outside the vocabulary",
                evidence=f"its id is {spec.eod}, the vocabulary has {spec.vocab_size} ids",
                next="correct --vocab-size, --null-tokenizer-eod-id or --eod-token",
            )

    def build(self) -> tuple[Encoder, str]:
        """An encoder, and why its engine was chosen.

        :raises PreprocessError: the tokenizer's files or the sentence model are not usable.
        """
        asked, spec = self.arguments, self.spec
        built = build_engine(spec, asked.tokenizer.engine_choice)
        eod = spec.eod if asked.append_eod else None
        encoder: Encoder
        if asked.handler is not None:
            ids = token_ids(spec)
            encoder = HandlerEncoder(
                built.engine, asked.handler, self.template, ids, eod, asked.json_keys
            )
        else:
            splitter = None
            if asked.split_sentences:
                splitter = build_splitter(asked.lang, keep_newlines=asked.keep_newlines)
            kind = id_type(spec.vocab_size)
            encoder = BlockEncoder(built.engine, asked.json_keys, kind, eod, splitter)
        return encoder, built.reason
