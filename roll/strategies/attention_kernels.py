"""Which of PyTorch's attention kernels fit batches whose shapes hardly ever come twice."""

from __future__ import annotations

import torch


def without_plans_for_each_shape() -> None:
    """Leave cuDNN's attention out in this process, on CUDA devices: it makes a plan for every new shape.

    Micro-batches and decoding steps have a new shape nearly always. PyTorch then takes FlashAttention, or its
    memory-efficient attention where there is a mask, neither of which plans ahead.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)
