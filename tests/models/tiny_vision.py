"""A tiny random model that sees, as a folder in Hugging Face format: the toy's words, and a Qwen2-VL of few weights."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image
from transformers import (
    AutoConfig,
    AutoTokenizer,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from roll.models.toy import WEIGHTS_DIRECTORY
from tests.pictures import SIDE

VISION_TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
MERGE = 2
PATCH = SIDE // MERGE

CHAT_TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message['role'] }}
{% if message['content'] is string -%}
{{ message['content'] }}
{%- else -%}
{%- for part in message['content'] -%}
{%- if part['type'] == 'image' -%}
<|vision_start|><|image_pad|><|vision_end|>
{%- elif part['type'] == 'text' -%}
{{ part['text'] }}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""


_FAMILIES = {
    "qwen2_vl": (Qwen2VLConfig, Qwen2VLForConditionalGeneration, {"embed_dim": 16, "hidden_size": 32, "mlp_ratio": 2}),
    "qwen2_5_vl": (
        Qwen2_5_VLConfig,
        Qwen2_5_VLForConditionalGeneration,
        {
            "hidden_size": 16,
            "out_hidden_size": 32,
            "intermediate_size": 32,
            "window_size": 2 * SIDE,
            "fullatt_block_indexes": [1],
        },
    ),
}


def make_tiny_vision(folder: Path, *, seed: int = 0, most_tokens: int = 64, family: str = "qwen2_vl") -> Path:
    """Write the folder of a model whose pictures take up to ``most_tokens`` tokens of ``SIDE`` x ``SIDE`` pixels."""
    configuration, kind, vision = _FAMILIES[family]
    tokenizer = AutoTokenizer.from_pretrained(WEIGHTS_DIRECTORY)
    tokenizer.add_special_tokens({"additional_special_tokens": list(VISION_TOKENS)})
    tokenizer.chat_template = CHAT_TEMPLATE
    start, end, image, video = tokenizer.convert_tokens_to_ids(list(VISION_TOKENS))
    config = configuration(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "max_position_embeddings": 4096,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]},
            "bos_token_id": None,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
            "tie_word_embeddings": False,
        },
        vision_config={
            **vision,
            "depth": 2,
            "num_heads": 2,
            "patch_size": PATCH,
            "spatial_merge_size": MERGE,
            "temporal_patch_size": 2,
        },
        image_token_id=image,
        video_token_id=video,
        vision_start_token_id=start,
        vision_end_token_id=end,
        tie_word_embeddings=False,
    )
    torch.manual_seed(seed)
    model = kind(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                # Larger than a fresh model's, so that what is shown changes what is said.
                parameter.mul_(6.0)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    processor = Qwen2VLImageProcessorPil(
        patch_size=PATCH, merge_size=MERGE, size={"shortest_edge": SIDE**2, "longest_edge": SIDE**2 * most_tokens}
    )
    processor.save_pretrained(folder)
    return folder


def own_inputs(folder: Path, tokens: Sequence[int], pictures: Sequence[bytes]) -> dict[str, torch.Tensor]:
    """Return what the model itself takes for a prompt with placeholders, by Hugging Face's own image processor."""
    config = AutoConfig.from_pretrained(folder)
    ids = torch.tensor([list(tokens)])
    inputs = {"input_ids": ids, "mm_token_type_ids": (ids == config.image_token_id).int()}
    if pictures:
        processor = Qwen2VLImageProcessorPil.from_pretrained(folder)
        images = [Image.open(io.BytesIO(data)).convert("RGB") for data in pictures]
        inputs |= dict(processor(images=images, return_tensors="pt"))
    return inputs
