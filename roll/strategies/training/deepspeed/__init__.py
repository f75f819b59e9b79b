"""`deepspeed_train` and `deepspeed_infer`: models trained and scored with DeepSpeed's ZeRO."""
