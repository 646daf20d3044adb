"""The tokenizer of a data handler: the model's, with the tokens of a prompt template."""

from __future__ import annotations

import importlib.util

from ._handler_encoder import TokenIds
from ._handlers import HandlerArguments
from ._huggingface import ask_transformers
from ._prompt_templates import PromptTemplate, read_template
from .errors import TokenizerError
from .tokenizer_flags import TokenizerArguments
from .tokenizers import TokenizerSpec, read_tokenizer, required


def template_of(asked: HandlerArguments) -> PromptTemplate | None:
    """The prompt template that ``--prompt-type`` names, if conversations are made.

    :raises UsageError: it is not known.
    """
    if asked.template is None:
        return None
    return read_template(asked.template, asked.template_file)


def read_handler_tokenizer(
    arguments: TokenizerArguments, asked: HandlerArguments, template: PromptTemplate | None
) -> TokenizerSpec:
    """The tokenizer as transformers loads it, with the template's tokens added.

    :raises TokenizerError: it cannot be loaded, or lacks a token that the template needs.
    """
    if arguments.tokenizer_type != "HuggingFaceTokenizer":
        return read_tokenizer(arguments)
    (path,) = required(arguments, "--tokenizer-model")
    if importlib.util.find_spec("transformers") is None:
        raise TokenizerError(
            "data handlers load tokenizers through transformers",
            evidence="transformers is not installed",
            next="pip install transformers",
        )
    found = ask_transformers(
        path,
        arguments,
        {
            "template": template is not None,
            "stop_words": template.stop_words if template else (),
            "replace_eos": bool(template and template.replace_eos),
            "tokens": template.tokens if template else (),
        },
    )
    missing = [token for token, number in found["named"].items() if number is None]
    if missing and template is not None:
        raise TokenizerError(
            f"the tokenizer has no token for the template {template.name}",
            evidence=f"{path}: no {', '.join(missing)}",
            next="use the template of this model with --prompt-type, or the model's tokenizer",
        )
    if asked.pack and found["pad"] is None:
        raise TokenizerError(
            "packed rows are filled up, and the tokenizer has no token for that",
            evidence=f"{path}: no pad_token and no eos_token",
            next="name one in its tokenizer_config.json",
        )
    ids = {"bos": found["bos"], "eos": found["eod"], "pad": found["pad"], "named": found["named"]}
    return TokenizerSpec(
        family="huggingface",
        payload=found["tokenizer_json"].encode(),
        vocab_size=found["vocab_size"],
        eod=found["eod"],
        options={"add_special_tokens": asked.is_text, "ids": ids},
    )


def token_ids(spec: TokenizerSpec) -> TokenIds:
    """The ids that :func:`read_handler_tokenizer` found."""
    return TokenIds(**spec.options.get("ids", {"bos": None, "eos": None, "pad": None, "named": {}}))
