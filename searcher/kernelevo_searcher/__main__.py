"""`python -m kernelevo_searcher` is `kernelevo`."""

from kernelevo_searcher.cli import main

if __name__ == "__main__":
    main()
