"""The prompt templates of models, by the names of ``--prompt-type``.

What a model's chat format is, as its own tokenizer_config.json or model card says; names and
defaults are MindSpeed-LLM's, whose ``templates.json`` has the same shape. A slot is text with
``{{content}}``, ``["bos_token"]`` or ``["eos_token"]`` where the tokenizer has one, or
``{"token": ...}`` for one token.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_IM_USER: Final = "<|im_start|>user\n{{content}}<|im_end|>\n<|im_start|>assistant\n"
_IM_TOOL: Final = "<|im_start|>tool\n{{content}}<|im_end|>\n<|im_start|>assistant\n"
_IM_SYSTEM: Final = "<|im_start|>system\n{{content}}<|im_end|>\n"
_IM_ANSWER: Final = "{{content}}<|im_end|>\n"
_IM_RESPONSE: Final = (
    "<|im_start|>user\n<tool_response>\n{{content}}\n</tool_response><|im_end|>\n"
    "<|im_start|>assistant\n"
)
_HELPFUL: Final = "You are a helpful assistant."
_BOS: Final = ["bos_token"]
_GMASK: Final = [{"token": "[gMASK]"}, {"token": "sop"}]


def _slots(*slots: object) -> dict[str, Any]:
    return {"slots": list(slots)}


def _chatml(**changes: Any) -> dict[str, Any]:
    """The format of ChatML and of Qwen before its third release."""
    return {
        "format_user": _slots(_IM_USER),
        "format_system": _slots(_IM_SYSTEM),
        "format_observation": _slots(_IM_TOOL),
        "format_separator": _slots("\n"),
        "stop_words": ["<|im_end|>"],
        "replace_eos": True,
        **changes,
    }


def _glm4(**changes: Any) -> dict[str, Any]:
    return {
        "format_user": _slots("<|user|>\n{{content}}<|assistant|>"),
        "format_assistant": _slots("\n{{content}}"),
        "format_system": _slots("<|system|>\n{{content}}"),
        "format_function": _slots("{{name}}\n{{arguments}}"),
        "format_observation": _slots("<|observation|>\n{{content}}<|assistant|>"),
        "format_tools": {"tool_format": "glm4"},
        "format_prefix": _slots("[gMASK]<sop>"),
        "stop_words": ["<|user|>", "<|observation|>"],
        "efficient_eos": True,
        **changes,
    }


def _user(*slots: object, **more: Any) -> dict[str, Any]:
    """A template that says no more than how a question looks."""
    return {"format_user": _slots(*slots), **more}


_DEEPSEEK2: Final = _user(
    "User: {{content}}\n\nAssistant:",
    format_system=_slots("{{content}}\n\n"),
    format_prefix=_slots(_BOS),
)
_CHATGLM3: Final = {
    "format_user": _slots({"token": "<|user|>"}, "\n", "{{content}}", {"token": "<|assistant|>"}),
    "format_assistant": _slots("\n", "{{content}}"),
    "format_observation": _slots(
        {"token": "<|observation|>"}, "\n", "{{content}}", {"token": "<|assistant|>"}
    ),
    "stop_words": ["<|user|>", "<|observation|>"],
    "efficient_eos": True,
}
_INSTRUCT: Final = _user("[INST] {{content}} [/INST]", format_prefix=_slots(_BOS))

TEMPLATES: Final[Mapping[str, Mapping[str, Any]]] = {
    "alpaca": _user(
        "### Instruction:\n{{content}}\n\n### Response:\n",
        format_separator=_slots("\n\n"),
        default_system="Below is an instruction that describes a task. "
        "Write a response that appropriately completes the request.\n\n",
    ),
    "baichuan2": _user("<reserved_106>{{content}}<reserved_107>", efficient_eos=True),
    "bailing_mini": {
        "format_user": _slots("<role>HUMAN</role>{{content}}<|role_end|><role>ASSISTANT</role>"),
        "format_assistant": _slots("{{content}}<|role_end|>"),
        "format_system": _slots("<role>SYSTEM</role>{{content}}<|role_end|>"),
        "format_observation": _slots(
            "<role>OBSERVATION</role>\n<tool_response>\n{{content}}\n</tool_response><|role_end|>"
            "<role>ASSISTANT</role>"
        ),
        "format_function": {**_slots("{{content}}<|role_end|>"), "tool_format": "ling"},
        "format_tools": {"tool_format": "ling"},
        "stop_words": ["<|endoftext|>"],
        "efficient_eos": True,
    },
    "chatglm2": _user(
        "[Round {{idx}}]\n\n问：{{content}}\n\n答：",
        format_prefix=_slots(*_GMASK),
        format_separator=_slots("\n\n"),
        efficient_eos=True,
    ),
    "chatglm3": {
        **_CHATGLM3,
        "format_system": _slots({"token": "<|system|>"}, "\n", "{{content}}"),
        "format_tools": {"tool_format": "glm4"},
        "format_prefix": _slots(*_GMASK),
    },
    "chatglm3_system": {
        **_CHATGLM3,
        "format_system": _slots(*_GMASK, {"token": "<|system|>"}, "\n", "{{content}}"),
        "format_function": _slots("{{name}}\n{{arguments}}"),
        "default_system": "You are ChatGLM3, a large language model trained by Zhipu.AI. "
        "Follow the user's instructions carefully. Respond using markdown.",
    },
    "chatml": _chatml(stop_words=["<|im_end|>", "<|im_start|>"]),
    "chatml_de": _chatml(
        stop_words=["<|im_end|>", "<|im_start|>"],
        default_system="Du bist ein freundlicher und hilfsbereiter KI-Assistent.",
    ),
    "cpm": _user("<用户>{{content}}<AI>", format_prefix=_slots(_BOS)),
    "deepseek2": _DEEPSEEK2,
    "deepseek2-lite": _DEEPSEEK2,
    "deepseek3": _user("<｜User｜>{{content}}<｜Assistant｜>", format_prefix=_slots(_BOS)),
    "default": _user(
        "Human: {{content}}\nAssistant:",
        format_system=_slots("{{content}}\n"),
        format_separator=_slots("\n"),
    ),
    "empty": _user("{{content}}", format_assistant=_slots("{{content}}")),
    "gemma": _user(
        "<start_of_turn>user\n{{content}}<end_of_turn>\n<start_of_turn>model\n",
        format_observation=_slots(
            "<start_of_turn>tool\n{{content}}<end_of_turn>\n<start_of_turn>model\n"
        ),
        format_separator=_slots("<end_of_turn>\n"),
        format_prefix=_slots(_BOS),
        efficient_eos=True,
    ),
    "glm4": _glm4(),
    "glm4_moe": _glm4(template_class="ReasoningTemplate"),
    "gpt_oss": {
        "format_user": _slots("<|start|>user<|message|>{{content}}<|end|><|start|>assistant"),
        "format_assistant": _slots("{{content}}<|end|>"),
        "format_system": _slots("<|start|>system<|message|>{{content}}<|end|>"),
        "thought_words": [
            "<|channel|>analysis<|message|>",
            "<|end|><|start|>assistant<|channel|>final<|message|>",
        ],
        "default_system": "You are ChatGPT, a large language model trained by OpenAI.",
        "efficient_eos": True,
        "template_class": "ReasoningTemplate",
    },
    "hunyuan": _user(
        "{{content}}", format_assistant=_slots("{{content}}"), default_system=_HELPFUL
    ),
    "intern2": {
        "format_user": _slots(_IM_USER),
        "format_assistant": _slots(_IM_ANSWER),
        "format_system": _slots(_IM_SYSTEM),
        "format_prefix": _slots(_BOS),
        "stop_words": ["<|im_end|>"],
    },
    "llama2": _user(
        _BOS,
        "[INST] {{content}} [/INST]",
        format_system=_slots("<<SYS>>\n{{content}}\n<</SYS>>\n\n"),
        template_class="Llama2Template",
    ),
    "llama3": _user(
        "<|start_header_id|>user<|end_header_id|>\n\n{{content}}<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        format_system=_slots("<|start_header_id|>system<|end_header_id|>\n\n{{content}}<|eot_id|>"),
        format_observation=_slots(
            "<|start_header_id|>tool<|end_header_id|>\n\n{{content}}<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n"
        ),
        format_prefix=_slots(_BOS),
        stop_words=["<|eot_id|>"],
        replace_eos=True,
    ),
    "mistral": _INSTRUCT,
    "mixtral": _INSTRUCT,
    "plm": {
        "format_user": _slots(_IM_USER),
        "format_assistant": _slots(_IM_ANSWER),
        "format_system": _slots(_IM_SYSTEM),
        "default_system": _HELPFUL,
        "stop_words": ["<|endoftext|>"],
        "replace_eos": True,
    },
    "qwen": _chatml(default_system=_HELPFUL),
    "qwen3": {
        "format_user": _slots(_IM_USER),
        "format_assistant": _slots(_IM_ANSWER),
        "format_system": _slots(_IM_SYSTEM),
        "format_function": {**_slots(_IM_ANSWER), "tool_format": "qwen"},
        "format_observation": _slots(_IM_RESPONSE),
        "format_tools": {"tool_format": "qwen"},
        "stop_words": ["<|im_end|>"],
        "replace_eos": True,
        "template_class": "ReasoningTemplate",
    },
    "qwen_lf": _chatml(
        format_assistant=_slots(_IM_ANSWER),
        format_observation=_slots(_IM_RESPONSE),
        default_system="You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
        template_class="LFDefaultTemplate",
    ),
    "qwen_math_r1": _chatml(
        default_system="Please reason step by step, and put your final answer within \\boxed{}."
    ),
    "trl": _user("{{content}}", format_assistant=_slots("{{content}}"), format_prefix=_slots(_BOS)),
}
