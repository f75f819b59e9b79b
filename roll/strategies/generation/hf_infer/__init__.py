"""Generation with Hugging Face transformers: continuous batching over slots of one key-value cache."""
