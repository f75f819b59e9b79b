"""What runs with a ``mode`` do instead of sampling and learning from that, a page each."""
