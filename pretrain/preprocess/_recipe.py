"""How to make an encoder: all that another process or machine needs for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from accel_bridge.process.extras import install

from ._arguments import Arguments
from ._handler_encoder import HandlerEncoder, token_ids
from ._handlers import HandlerArguments
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
class BuiltEncoder:
    """An encoder and why its engine was chosen."""

    encoder: Encoder
    reason: str


@dataclass(frozen=True)
class EncoderRecipe:
    """A tokenizer's files and the flags that decide what becomes of a document."""

    spec: TokenizerSpec
    engine_choice: str
    keys: tuple[str, ...]
    append_eod: bool
    split_sentences: bool
    keep_newlines: bool
    language: str
    handler: HandlerArguments | None = None
    template: PromptTemplate | None = None

    @classmethod
    def of(
        cls,
        arguments: Arguments,
        spec: TokenizerSpec,
        template: PromptTemplate | None = None,
    ) -> EncoderRecipe:
        """The recipe of a command line.

        :raises TokenizerError: there is no end-of-document token to append.
        """
        if arguments.append_eod and spec.eod is None:
            raise TokenizerError(
                "--append-eod, and the tokenizer names no end-of-document token",
                evidence=f"{arguments.tokenizer.tokenizer_type}: no eos_token in its files",
                next="name it with --eod-token TOKEN",
            )
        most = np.iinfo(id_type(spec.vocab_size)).max
        if arguments.append_eod and not 0 <= (spec.eod or 0) <= most:
            raise TokenizerError(
                "the end-of-document token is outside the vocabulary",
                evidence=f"its id is {spec.eod}, the vocabulary has {spec.vocab_size} ids",
                next="correct --vocab-size, --null-tokenizer-eod-id or --eod-token",
            )
        return cls(
            spec=spec,
            engine_choice=arguments.tokenizer.engine_choice,
            keys=arguments.json_keys,
            append_eod=arguments.append_eod,
            split_sentences=arguments.split_sentences,
            keep_newlines=arguments.keep_newlines,
            language=arguments.lang,
            handler=arguments.handler,
            template=template,
        )

    def build(self) -> BuiltEncoder:
        """Build it.

        :raises PreprocessError: the tokenizer's files or the sentence model are not usable.
        """
        built = build_engine(self.spec, self.engine_choice)
        eod = self.spec.eod if self.append_eod else None
        if self.handler is not None:
            ids = token_ids(self.spec)
            return BuiltEncoder(
                HandlerEncoder(built.engine, self.handler, self.template, ids, eod, self.keys),
                built.reason,
            )
        splitter = None
        if self.split_sentences:
            splitter = build_splitter(self.language, keep_newlines=self.keep_newlines)
        encoder = BlockEncoder(
            built.engine,
            self.keys,
            id_type(self.spec.vocab_size),
            eod,
            splitter,
        )
        return BuiltEncoder(encoder, built.reason)
