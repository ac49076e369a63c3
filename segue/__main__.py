"""`python -m segue` is `segue`: for torchrun, and for those who have several."""

from segue.cli import main

if __name__ == "__main__":
    main()
