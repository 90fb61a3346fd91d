"""The program ``owlrl``, from its first line on: Ctrl-C ends it without a word while it is being imported."""

import signal

__all__ = ["main"]


def main() -> int:
    """Import the command with Ctrl-C as in programs that are not Python, then run it."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # else somebody wants it otherwise, a shell's background job
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        from owlrl.cli import main as command
    finally:
        signal.signal(signal.SIGINT, handler)
    return command()
