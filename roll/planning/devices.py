"""What accelerators hold and do, from their makers' data sheets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from roll.common.registry import Registry


@dataclass(frozen=True, slots=True)
class Gpu:
    """One kind of accelerator.

    Attributes:
        name: As ``--gpu`` says it.
        gib: Memory, in GiB that a program can have.
        tflops: Dense bf16 arithmetic, in 10¹² operations a second.
        tb_per_second: What its memory gives, in 10¹² bytes a second.
        link_gb_per_second: What it exchanges with a neighbour in one direction, in 10⁹ bytes a second.
    """

    name: str
    gib: float
    tflops: float
    tb_per_second: float
    link_gb_per_second: float

    @property
    def bytes(self) -> int:
        """Memory in bytes."""
        return int(self.gib * 2**30)


GPUS: Final[Registry[Gpu]] = Registry("gpu")
"""What ``--gpu`` accepts."""

# Memory is what the driver reports, which is a little below the number in the name.
for _gpu in (
    Gpu("a10", 22.5, 125, 0.6, 32),
    Gpu("a100", 79.2, 312, 2.04, 300),
    Gpu("a100-40g", 39.4, 312, 1.56, 300),
    Gpu("h20", 95.6, 148, 4.0, 450),
    Gpu("h100", 79.2, 989, 3.35, 450),
    Gpu("h200", 139.8, 989, 4.8, 450),
    Gpu("h800", 79.2, 989, 3.35, 200),
    Gpu("b200", 178.4, 2250, 7.7, 900),
    Gpu("l40s", 44.4, 362, 0.864, 32),
    Gpu("rtx4090", 23.6, 165, 1.008, 32),
    Gpu("mi300x", 191.5, 1307, 5.3, 448),
):
    GPUS.add(_gpu.name, _gpu)
