"""`megatron_train` and `megatron_infer`: training and scoring with Megatron-Core, for models that need many devices."""
