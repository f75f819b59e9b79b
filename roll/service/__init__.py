"""Training as a service: clients of Tinker's protocol train LoRA adapters of one model, and sample from them."""
