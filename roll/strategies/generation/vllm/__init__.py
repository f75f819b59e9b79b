"""The `vllm` engine: vLLM's own `AsyncLLM`, on CPUs and GPUs."""
