"""Messages of the protocol, read into records and written from them; their form is that of the package ``tinker``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from tinker.proto import tinker_public_pb2 as messages
from torch import Tensor

from roll.generation import SamplingParams
from roll.service.records import Adam, Adapters, Example, Learned, RefusedError, Sampled

_NUMBERS = {messages.DTYPE_FLOAT32: np.float32, messages.DTYPE_INT64: np.int64, messages.DTYPE_INT32: np.int32}


@dataclass(frozen=True, slots=True)
class Pass:
    """A forward pass, and perhaps a backward pass, that a client asks for."""

    model_id: str
    sequence: int
    examples: Sequence[Example]
    loss: str
    config: Mapping[str, float]
    backward: bool


def read_pass(content: bytes) -> Pass:
    """Read the body of ``forward_backward``.

    Raises:
        RefusedError: It is none, or has what is no text.
    """
    message = messages.ForwardBackwardRequest()
    try:
        message.ParseFromString(content)
    except Exception as error:
        raise RefusedError(f"this is no ForwardBackwardRequest: {error}") from error
    examples = [
        Example(_tokens(each.model_input), {name: _tensor(name, value) for name, value in each.loss_fn_inputs.items()})
        for each in message.data
    ]
    config = dict(message.loss_fn_config)
    return Pass(message.model_id, message.seq_id, examples, message.loss_fn, config, not message.forward_only)


def write_learned(learned: Learned) -> bytes:
    """Write the result of ``forward_backward``."""
    message = messages.ForwardBackwardOutput(loss_fn_output_type="scalar")
    for name, value in learned.metrics.items():
        message.metrics[name] = value
    # The protocol wants outputs of one width together: neighbours that have it share a record.
    for _, group in groupby(learned.outputs, key=lambda each: each["logprobs"].shape[1:]):
        alike = list(group)
        record = message.loss_fn_outputs.add()
        record.num_datums = len(alike)
        for name in alike[0]:
            arrays = [each[name].to(torch.float32).numpy() for each in alike]
            ends = np.cumsum([0, *(array.nbytes for array in arrays)], dtype=np.int64)
            record.fields[name].CopyFrom(
                messages.BatchedTensor(
                    data=b"".join(array.tobytes() for array in arrays),
                    offsets=ends.tobytes(),
                    dtype=messages.DTYPE_FLOAT32,
                    trailing_shape=arrays[0].shape[1:],
                )
            )
    return bytes(message.SerializeToString())


def write_sampled(sampled: Sampled) -> bytes:
    """Write the result of ``asample``."""
    message = messages.SampleResponse()
    for token_ids, logprobs, stopped in sampled.sequences:
        message.sequences.add(
            tokens=np.asarray(token_ids, np.int32).tobytes(),
            logprobs=np.asarray(logprobs, np.float32).tobytes(),
            stop_reason=messages.STOP_REASON_STOP if stopped else messages.STOP_REASON_LENGTH,
        )
    if sampled.prompt_logprobs:
        known = [math.nan if value is None else value for value in sampled.prompt_logprobs]
        message.prompt_logprobs = np.asarray(known, np.float32).tobytes()
    return bytes(message.SerializeToString())


def read_prompt(body: Mapping[str, Any]) -> list[int]:
    """Return the tokens of a prompt.

    Raises:
        RefusedError: It has something else.
    """
    tokens: list[int] = []
    for chunk in body.get("prompt", {}).get("chunks", []):
        if chunk.get("type", "encoded_text") != "encoded_text":
            raise RefusedError(f"a prompt may have text only, and has {chunk.get('type')}")
        tokens += [int(token) for token in chunk.get("tokens", [])]
    return tokens


def read_sampling(body: Mapping[str, Any], stops: Sequence[int], longest: int) -> tuple[SamplingParams, int | None]:
    """Return how a client wants tokens drawn, and the seed of the noise if it gave one.

    Args:
        body: Of ``asample``.
        stops: Tokens that end an answer where the client says nothing of it.
        longest: Most tokens of an answer, likewise.

    Raises:
        RefusedError: It cannot be.
    """
    given: Mapping[str, Any] = body.get("sampling_params") or {}
    for name in ("topk_prompt_logprobs", "topk_sample_logprobs", "prompt_alt_tokens_k"):
        if body.get(name):
            raise RefusedError(f"{name} is not supported: leave it out")
    for name in ("target_prompt_logprobs", "prompt_logprobs_last_n", "record_stability_info"):
        if body.get(name) is not None and body[name] is not False:
            raise RefusedError(f"{name} is not supported: leave it out")
    stop = given.get("stop")
    texts = (stop,) if isinstance(stop, str) else tuple(each for each in stop or () if isinstance(each, str))
    ids = tuple(stops) if stop is None or texts else tuple(int(each) for each in stop if not isinstance(each, str))
    try:
        drawn = SamplingParams(
            int(given.get("max_tokens") or longest),
            float(given.get("temperature", 1.0)),
            float(given.get("top_p", 1.0)),
            int(given.get("top_k", -1)),
            ids,
            stop_strings=texts,
        )
    except (TypeError, ValueError) as error:
        raise RefusedError(f"sampling_params: {error}") from error
    return drawn, given.get("seed")


def read_adam(body: Mapping[str, Any]) -> Adam:
    """Return how a client wants its step.

    Raises:
        RefusedError: It wants another optimiser, or an unknown setting.
    """
    if "adam_params" not in body:
        raise RefusedError("there is no optimiser but Adam: send adam_params")
    try:
        return Adam(**{name: float(value) for name, value in body["adam_params"].items() if name != "type"})
    except (TypeError, ValueError) as error:
        raise RefusedError(f"adam_params: {error}") from error


def read_adapters(body: Mapping[str, Any]) -> Adapters:
    """Return which adapters a client wants.

    Raises:
        RefusedError: It wants something else.
    """
    given = body.get("lora_config")
    if not isinstance(given, Mapping):
        raise RefusedError("only LoRA adapters can be trained: send lora_config")
    try:
        return Adapters(
            int(given["rank"]),
            int(given.get("seed") or 0),
            bool(given.get("train_mlp", True)),
            bool(given.get("train_attn", True)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RefusedError(f"lora_config: {error!r}") from error


def _tokens(chunks: Sequence[Any]) -> list[int]:
    tokens: list[int] = []
    for chunk in chunks:
        if not chunk.HasField("encoded_text"):
            raise RefusedError("model_input may have text only")
        tokens += np.frombuffer(chunk.encoded_text.tokens, np.int32).tolist()
    return tokens


def _tensor(name: str, message: Any) -> Tensor:
    if message.dtype not in _NUMBERS:
        raise RefusedError(f"loss_fn_inputs[{name!r}] is no tensor of numbers that this protocol has")
    kind, shape = _NUMBERS[message.dtype], list(message.shape)
    if message.HasField("sparse_csr"):
        return _sparse(name, message.sparse_csr, kind, shape)
    values = np.frombuffer(message.dense, kind).copy()
    try:
        return torch.from_numpy(values).reshape(shape or [len(values)])
    except RuntimeError as error:
        raise RefusedError(f"loss_fn_inputs[{name!r}]: {error}") from error


def _sparse(name: str, given: Any, kind: type[Any], shape: Sequence[int]) -> Tensor:
    """Return the whole of a matrix that a client sent in compressed sparse rows, since much of it is 0."""
    starts, columns = (np.frombuffer(each, np.int64) for each in (given.crow_indices, given.col_indices))
    try:
        whole = np.zeros(shape, kind)
        whole[np.repeat(np.arange(len(whole)), np.diff(starts)), columns] = np.frombuffer(given.values, kind)
    except (ValueError, IndexError, TypeError) as error:
        raise RefusedError(f"loss_fn_inputs[{name!r}] is no sparse matrix: {error}") from error
    return torch.from_numpy(whole)
