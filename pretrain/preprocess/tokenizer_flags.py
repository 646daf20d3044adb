"""The flags that name a tokenizer, for `preprocess` and `inspect`: Megatron-LM 0.19's, and ours."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields
from typing import Any

from accel_bridge.process.parser import positive

TOKENIZER_TYPES = (
    "BertWordPieceLowerCase",
    "BertWordPieceCase",
    "GPT2BPETokenizer",
    "SentencePieceTokenizer",
    "GPTSentencePieceTokenizer",
    "Llama2Tokenizer",
    "HuggingFaceTokenizer",
    "TikTokenizer",
    "NullTokenizer",
)
#: Types that upstream's parser knows and that make no training data from text lines.
REFUSED_TOKENIZER_TYPES = ("MultimodalTokenizer", "NullMultimodalTokenizer", "SFTTokenizer")


#: MindSpeed-LLM's names of types.
_NAMES = {"PretrainedFromHF": "HuggingFaceTokenizer"}


@dataclass(frozen=True)
class TokenizerArguments:
    """What names a tokenizer; the fields are Megatron's arguments of the same name."""

    tokenizer_type: str
    vocab_file: str | None = None
    merge_file: str | None = None
    tokenizer_model: str | None = None
    vocab_size: int | None = None
    special_tokens: tuple[str, ...] = ()
    tiktoken_pattern: str | None = None
    tiktoken_num_special_tokens: int = 1000
    sentencepiece_legacy: bool = False
    sentencepiece_ignore_extra_whitespaces: bool = True
    include_special_tokens: bool = True
    use_fast: bool = True
    trust_remote_code: bool = False
    null_eod_id: int | None = None
    eod_token: str | None = None
    compat: str = "0.19"
    engine_choice: str = "auto"

    @property
    def files(self) -> tuple[str, ...]:
        """The files and directories that are read."""
        return tuple(
            path for path in (self.vocab_file, self.merge_file, self.tokenizer_model) if path
        )


def add_tokenizer(group: argparse._ArgumentGroup, *, required: bool) -> None:
    """Every flag about the tokenizer.

    :param required: without a type there is an error. Types that make no data pass the parser
        then, for an error that says why.
    """
    group.add_argument(
        "--tokenizer-type",
        required=required,
        type=lambda name: _NAMES.get(name, name),
        choices=TOKENIZER_TYPES + (REFUSED_TOKENIZER_TYPES if required else ()),
        help="Megatron's name of the tokenizer",
    )
    group.add_argument("--vocab-file", help="vocabulary file (GPT-2: vocab.json; BERT: vocab.txt)")
    group.add_argument("--merge-file", help="BPE merges file")
    group.add_argument(
        "--tokenizer-model",
        "--tokenizer-name-or-path",
        help="directory, tokenizer.json or .model file",
    )
    group.add_argument(
        "--vocab-size", type=positive, help="vocabulary size (NullTokenizer, TikTokenizer)"
    )
    group.add_argument(
        "--tokenizer-special-tokens",
        dest="special_tokens",
        nargs="+",
        default=[],
        metavar="TOKEN",
        help="additional special tokens",
    )
    group.add_argument("--tiktoken-pattern", choices=("v1", "v2"), help="TikTokenizer's pattern")
    group.add_argument("--tiktoken-num-special-tokens", type=positive, default=1000)
    group.add_argument(
        "--tokenizer-sentencepiece-legacy", dest="sentencepiece_legacy", action="store_true"
    )
    group.add_argument(
        "--no-tokenizer-sentencepiece-ignore-extra-whitespaces",
        "--disable-tokenizer-sentencepiece-ignore-extra-whitespaces",
        dest="sentencepiece_ignore_extra_whitespaces",
        action="store_false",
    )
    group.add_argument("--tokenizer-hf-no-use-fast", dest="use_fast", action="store_false")
    group.add_argument(
        "--tokenizer-hf-no-include-special-tokens",
        dest="include_special_tokens",
        action="store_false",
    )
    group.add_argument("--trust-remote-code", action="store_true")
    group.add_argument("--null-tokenizer-eod-id", dest="null_eod_id", metavar="ID", type=int)
    group.add_argument(
        "--eod-token",
        help="end-of-document token where the tokenizer's files do not name one",
    )
    group.add_argument(
        "--compat",
        choices=("0.19", "0.12"),
        default="0.19",
        help="whose bytes: Megatron 0.19 (literal special tokens become their ids) "
        "or 0.12 (they are plain text)",
    )
    group.add_argument(
        "--tokenizer-engine",
        dest="engine_choice",
        choices=("auto", "exact"),
        default="auto",
        help="auto: the fast engine where it is proven equal; exact: the reference engine only",
    )


def fields_of(kind: type, parsed: argparse.Namespace) -> dict[str, Any]:
    """What was parsed for each field of a dataclass; lists as tuples."""
    given = {one.name: getattr(parsed, one.name) for one in fields(kind) if one.name in parsed}
    return {name: tuple(one) if isinstance(one, list) else one for name, one in given.items()}


def tokenizer_arguments(parsed: argparse.Namespace) -> TokenizerArguments:
    """What the flags of :func:`add_tokenizer` said."""
    return TokenizerArguments(**fields_of(TokenizerArguments, parsed))
