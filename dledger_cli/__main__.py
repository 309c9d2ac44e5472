"""`python -m dledger_cli`: the program where its script isn't installed, and for child nodes."""

from dledger_cli import main

if __name__ == "__main__":
    main()
