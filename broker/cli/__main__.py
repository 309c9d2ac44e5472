"""`python -m broker.cli`: the program where its script isn't installed, and for child nodes."""

from broker.cli.app import main

if __name__ == "__main__":
    main()
