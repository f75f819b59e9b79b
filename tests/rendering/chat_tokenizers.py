"""Small tokenizers and chat templates with the habits of real ones."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

CHATML = (
    "{%- for m in messages -%}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}"
)
# Trims every content and opens with a BOS token.
LLAMA_3 = (
    "{{ '<|bos|>' }}{%- for m in messages -%}"
    "{{ '<|start|>' + m.role + '<|end|>\n\n' + m.content | trim + '<|eot|>' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|start|>assistant<|end|>\n\n' }}{%- endif -%}"
)
# Drops the thinking of assistant turns before the last user message; may prefill an empty thought.
QWEN_3 = (
    "{%- set ns = namespace(last=0) -%}{%- for m in messages -%}{%- if m.role == 'user' -%}"
    "{%- set ns.last = loop.index0 -%}{%- endif -%}{%- endfor -%}"
    "{%- for m in messages -%}{%- set text = m.content -%}"
    "{%- if m.role == 'assistant' and '</think>' in text and loop.index0 < ns.last -%}"
    "{%- set text = text.split('</think>')[-1].lstrip('\n') -%}{%- endif -%}"
    "{{ '<|im_start|>' + m.role + '\n' + text + '<|im_end|>\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false -%}{{ '<think>\n\n</think>\n\n' }}{%- endif -%}"
    "{%- endif -%}"
)
# What it writes first depends on everything that follows.
COUNTER = "{{ '[' ~ messages | length ~ ' messages]' }}" + CHATML
# Numbers the user messages, so that a turn's text depends on where it stands.
NUMBERED = CHATML.replace("m.role + '\n'", "m.role + (' %d' % loop.index if m.role == 'user' else '') + '\n'")
# The next role's header is what ends an assistant's turn.
NO_CLOSE = (
    "{%- for m in messages -%}{{ '<|' + m.role + '|>' + m.content }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|assistant|>' }}{%- endif -%}"
)
# No control token at all.
PLAIN = "{%- for m in messages -%}{{ m.role + ': ' + m.content + '\n' }}{%- endfor -%}{{ 'assistant: ' }}"
# Refuses system messages.
NO_SYSTEM = "{%- if messages[0].role == 'system' -%}{{ raise_exception('no system') }}{%- endif -%}" + CHATML

SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|bos|>",
    "<|start|>",
    "<|end|>",
    "<|eot|>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
)
MARKUP = (
    "<think>",
    "</think>",
    "<answer>",
    "</answer>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)
CORPUS = ["user\n#####\n#@$.#\n#####\n", "system\nYou push boxes.\n\nassistant\nUp Down Left Right\n"] * 8


def make_tokenizer(template: str | None, eos: str = "<|im_end|>", flagged: bool = True) -> PreTrainedTokenizerFast:
    """Byte-level BPE whose merges cross line ends; ``flagged=False`` does not mark control tokens as special."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken(token, special=flagged, normalized=False) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in MARKUP])
    options = {"eos_token": eos, "pad_token": "<|endoftext|>"} if flagged else {}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **options)
    fast.chat_template = template
    return fast
