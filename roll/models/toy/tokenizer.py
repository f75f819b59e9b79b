"""The toy tokenizer: byte-level BPE of at most 512 tokens with a ChatML template.

Any text round-trips (all 256 bytes are in the vocabulary). Common words of the project's prompts are one token; in a
board every cell is one token, while the pieces of a board that say nothing (the outer wall and the line break between
two walls) are merged, so that a 6x6 board is about 23 tokens instead of 41.
"""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

VOCABULARY_SIZE = 512
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKUP_TOKENS = (
    "<think>",
    "</think>",
    "<answer>",
    "</answer>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)

# In order: wall-newline-wall, a run of outer wall, a word (with its leading space), any single character.
SPLIT_PATTERN = r"#\n#|#{4,}(?=#\n#)|#{4,}(?![#\n])| ?[A-Z]?[a-z]+|[\s\S]"


def grid_pattern(side: int) -> str:
    """Return the same for boards of one side, where a row of inner walls stays a token per cell.

    Only the frame is merged. So a cell is always the same number of tokens away from the one below it, and from itself
    a turn later.
    """
    edge = f"#{{{side - 1}}}"
    return rf"#\n#|{edge}(?=#\n#)|{edge}(?![#\n])| ?[A-Z]?[a-z]+|[\s\S]"


GRID_PATTERN = grid_pattern(6)
"""Of the boards of SimpleSokoban."""

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)


def build_tokenizer(
    corpus: Iterable[str], vocabulary_size: int = VOCABULARY_SIZE, pattern: str = SPLIT_PATTERN
) -> PreTrainedTokenizerFast:
    """Train the byte-level BPE on ``corpus`` and attach the ChatML template.

    Args:
        corpus: Texts of the kind the policy will read.
        vocabulary_size: Upper bound on the number of tokens, special tokens included.
        pattern: What may become a token.

    Returns:
        A tokenizer that ``transformers`` saves and loads, with ``<|im_end|>`` as end-of-sequence token.
    """
    tokenizer = Tokenizer(models.BPE())
    split_by(tokenizer, pattern)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size - len(MARKUP_TOKENS),
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in MARKUP_TOKENS])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def split_by(tokenizer: Tokenizer, pattern: str) -> None:
    """Let no token reach beyond what matches ``pattern``, in a tokenizer that may already have its tokens."""
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
