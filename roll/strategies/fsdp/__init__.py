"""What `fsdp_train` needs to run over several ranks: options, sharding, and checkpoints of shards."""
