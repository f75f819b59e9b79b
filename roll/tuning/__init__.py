"""Search for good values of keys: trials are runs, and Optuna decides what is tried, what stops and what goes on."""
