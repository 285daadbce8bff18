"""The command `hunk`, and `python -m hunk`."""

from agent_runtime.cli.main import run

if __name__ == "__main__":
    run()
