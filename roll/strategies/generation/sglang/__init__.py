"""The `sglang` engine: SGLang's own `Engine`."""
