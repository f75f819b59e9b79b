"""**Not the kernels.** Stands where SGLang's compiled kernels would be, so that its engine starts on CPUs without them.

SGLang imports names from here whatever it runs on; with the PyTorch backends it calls next to none of them. What it
does call is written out in PyTorch below; any other name can be imported, and says so when it is called.
"""

from __future__ import annotations

from typing import Any

import torch


def assign_req_to_token_pool_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    width: int,
) -> None:
    """Write down where the cache has the new tokens of each request, in place."""
    taken = 0
    for row, start, end in zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True):
        req_to_token[row, start:end] = out_cache_loc[taken : taken + end - start].to(req_to_token.dtype)
        taken += end - start


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*arguments: Any, **named: Any) -> Any:
        raise NotImplementedError(f"sgl_kernel.{name} was called, and this machine has no compiled kernels of SGLang")

    return missing
