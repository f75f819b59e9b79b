"""``python -m roll``: the program of :mod:`roll.cli.app`."""

from roll.cli.app import main

if __name__ == "__main__":
    main()
