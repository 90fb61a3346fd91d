"""The program ``owlrl``: stopped while its libraries are still being imported, it says so in one line."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> int:
    """Import the command and run it; 130 after Ctrl-C, at whatever moment."""
    try:
        from owlrl.cli import main as run

        return run()
    except KeyboardInterrupt:
        print("owlrl: stopped", file=sys.stderr)
        return 130
