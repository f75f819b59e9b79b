"""The program ``ray``, with workers set up by :mod:`tests.warm_ray`: ``python -m tests.warm_ray_head start …``."""

from __future__ import annotations

import sys

from tests.warm_ray import set_up_here

if __name__ == "__main__":
    set_up_here()
    from ray.scripts.scripts import main

    sys.exit(main())
