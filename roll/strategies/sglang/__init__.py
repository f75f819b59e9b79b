"""The `sglang` engine: SGLang's own `Engine`, written to its contract; no GPU run has been made."""

from roll.strategies.sglang.strategy import SglangStrategy

__all__ = ["SglangStrategy"]
