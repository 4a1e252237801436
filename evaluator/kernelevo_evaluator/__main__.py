"""`python -m kernelevo_evaluator` is `kernelevo-evaluator`."""

from kernelevo_evaluator.cli import main

if __name__ == "__main__":
    main()
