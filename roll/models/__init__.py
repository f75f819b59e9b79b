"""Policies and tokenizers: the packaged toy model and the loading of any Hugging Face causal language model."""
