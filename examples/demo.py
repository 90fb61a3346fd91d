"""What `make demo` runs: tasks that contradict each other, with one head and with OWL.

    python examples/demo.py [--arms 4] [--frames 30000] [--seed 0] [--picture runs/demo.png]

Takes about two minutes on two cores; prints a table and draws a picture.
"""

import argparse
import time
from pathlib import Path

import torch

from owlrl.experiments.demo import run_demo

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--arms", type=int, default=4, help="tasks, 2 to 8 (default 4)")
    parser.add_argument("--frames", type=int, default=30_000, help="per task (default 30000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture", type=Path, default=Path("runs/demo.png"))
    options = parser.parse_args()
    torch.set_num_threads(1)  # the networks are small
    start = time.monotonic()
    demo = run_demo(arms=options.arms, frames=options.frames, seed=options.seed, output=options.picture)
    print(f"\nShare of episodes that reached the goal that pays:\n\n{demo.table()}\n")
    print(f"{time.monotonic() - start:.0f} s. The picture is {options.picture}.")
