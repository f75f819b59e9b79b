"""The `sglang` engine: SGLang's own `Engine`."""

from roll.strategies.generation.sglang.strategy import SglangStrategy

__all__ = ["SglangStrategy"]
