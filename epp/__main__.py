"""`python -m epp`: the same as the `epp` command."""

from epp.cli import main

if __name__ == "__main__":
    main()
