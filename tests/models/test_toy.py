"""The shipped tokenizer, and the script that makes the toy policy."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import roll.envs
from roll.models.loading import load_model, load_tokenizer
from roll.models.toy.build import build
from roll.models.toy.tokenizer import MARKUP_TOKENS, SPECIAL_TOKENS, VOCABULARY_SIZE
from roll.rendering import ChatRenderer

TOKENIZER = load_tokenizer("toy")
RENDERER = ChatRenderer(TOKENIZER)
SYSTEM = {"role": "system", "content": "Solve the Sokoban puzzle."}
USER = {"role": "user", "content": "######\n#__O_#\n#_XP_#\n######"}
ANSWER = "<answer>Up</answer>"


def encode(text: str) -> list[int]:
    return list(TOKENIZER.encode(text, add_special_tokens=False))


def decode(ids: list[int]) -> str:
    return str(TOKENIZER.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


@given(st.text())
def test_every_text_round_trips(text: str) -> None:
    assert decode(encode(text)) == text


def test_every_byte_has_a_token() -> None:
    everything = "".join(map(chr, [*range(0x250), 0x20AC, 0x1F600, 0x10FFFF]))
    assert decode(encode(everything)) == everything
    assert TOKENIZER.unk_token_id is None
    assert len(TOKENIZER) <= VOCABULARY_SIZE


def test_special_tokens_and_markup_are_one_token_each() -> None:
    ids = [encode(token) for token in (*SPECIAL_TOKENS, *MARKUP_TOKENS)]
    assert all(len(each) == 1 for each in ids) and len({each[0] for each in ids}) == len(ids)
    assert (TOKENIZER.eos_token, TOKENIZER.pad_token) == ("<|im_end|>", "<|endoftext|>")
    assert [len(encode(word)) for word in ("Up", "Down", "Left", "Right")] == [1, 1, 1, 1]
    # Markup stays in the text that environments parse.
    assert TOKENIZER.decode(encode(ANSWER), skip_special_tokens=True) == ANSWER


def cells(tag: str, board: str) -> list[int]:
    """Positions of the characters a player acts on: everything but walls and line breaks."""
    return [k for k, character in enumerate(board) if character != "\n" and not ("Sokoban" in tag and character == "#")]


@pytest.mark.parametrize("tag", ["SimpleSokoban", "LargerSokoban", "FrozenLake"])
def test_every_cell_that_is_not_wall_is_one_token(tag: str) -> None:
    env = roll.envs.make(tag)
    for seed in range(100):
        board, _ = env.reset(seed=seed)
        encoding = TOKENIZER(board, add_special_tokens=False, return_offsets_mapping=True)
        alone = {start for start, end in encoding["offset_mapping"] if end == start + 1}
        assert set(cells(tag, board)) <= alone, board


def test_a_board_costs_about_half_its_characters() -> None:
    env = roll.envs.make("SimpleSokoban")
    sizes = [len(encode(env.reset(seed=seed)[0])) for seed in range(50)]
    assert len(env.reset(seed=0)[0]) == 41 and max(sizes) <= 25


def test_the_template_is_chatml() -> None:
    text = TOKENIZER.apply_chat_template(
        [SYSTEM, USER, {"role": "assistant", "content": ANSWER}, USER], tokenize=False, add_generation_prompt=True
    )
    assert text == (
        f"<|im_start|>system\n{SYSTEM['content']}<|im_end|>\n"
        f"<|im_start|>user\n{USER['content']}<|im_end|>\n"
        f"<|im_start|>assistant\n{ANSWER}<|im_end|>\n"
        f"<|im_start|>user\n{USER['content']}<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_conversations_extend_in_place() -> None:
    assert RENDERER.bridge_problem is None
    assert RENDERER.stop_token_ids == (TOKENIZER.convert_tokens_to_ids("<|im_end|>"),)


@pytest.fixture(scope="module")
def witness() -> Any:
    library = pytest.importorskip("renderers")
    return library.Qwen3Renderer(TOKENIZER, library.Qwen3RendererConfig(enable_thinking=True, thinking_retention="all"))


@pytest.mark.long
class TestAgainstRenderersLibrary:
    """The hand-written Qwen3 renderer of the ``renderers`` package as an independent witness."""

    @pytest.mark.parametrize("messages", [[USER], [SYSTEM, USER]])
    def test_first_prompts_agree(self, messages: list[dict[str, str]], witness: Any) -> None:
        assert RENDERER.initial_ids(messages) == witness.render_ids(messages, add_generation_prompt=True)

    @pytest.mark.parametrize("stopped", [True, False])
    @pytest.mark.parametrize("reply", [ANSWER, "<think>\nup\n</think>\n\n" + ANSWER, "Up", ""])
    @pytest.mark.parametrize("content", [USER["content"], "\n leading", "", "reward {x}\n"])
    def test_bridges_agree(self, stopped: bool, reply: str, content: str, witness: Any) -> None:
        prompt = RENDERER.initial_ids([SYSTEM, USER])
        completion = encode(reply) + ([RENDERER.stop_token_ids[0]] if stopped else [])
        new = [{"role": "user", "content": content}]
        theirs = witness.bridge_to_next_turn(prompt, completion, new)
        bridge = RENDERER.next_ids(completion, new)
        assert theirs is not None and bridge is not None
        assert prompt + completion + bridge == theirs.token_ids


def digests(directory: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.iterdir()}


@pytest.mark.long
def test_the_build_is_reproducible_and_replaces_what_was_there(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    second.mkdir()
    (second / "leftover").touch()
    build(first, steps=2, batch_size=4)
    torch.manual_seed(1234)
    build(second, steps=2, batch_size=4)
    assert digests(first) == digests(second)
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= digests(first).keys()
    assert sum(path.stat().st_size for path in first.iterdir()) < 4 * 2**20
    tokenizer, model = load_tokenizer(str(first)), load_model(str(first))
    assert model.config.vocab_size == len(tokenizer) and model.config.model_type == "qwen3"
    assert model.config.eos_token_id == tokenizer.eos_token_id
    build(second, steps=2, batch_size=4, seed=1)
    assert digests(first)["model.safetensors"] != digests(second)["model.safetensors"]
    assert digests(first)["tokenizer.json"] == digests(second)["tokenizer.json"]


def test_the_shipped_policy_fits_its_tokenizer_and_its_budget() -> None:
    model = load_model("toy")
    assert model.config.vocab_size == len(TOKENIZER)
    assert not model.training and {p.dtype for p in model.parameters()} == {torch.float32}
    folder = Path(TOKENIZER.name_or_path)
    assert sum(path.stat().st_size for path in folder.iterdir()) < 4 * 2**20
