"""`fsdp_train` and `fsdp_infer`: models trained and scored with PyTorch alone, in one process or sharded by FSDP2."""
