"""A training job for tests of `stepscope tune`: options that it takes, one that it refuses, one with which it fails."""

import argparse
import sys
import time

import torch


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8, choices=(8, 16, 32))
    parser.add_argument("--fails", type=int, default=0)
    given = parser.parse_args()
    optimizer = torch.optim.SGD()
    for step in range(100_000):
        time.sleep(0.002)
        if given.fails == 1 and step == 3:
            raise torch.cuda.OutOfMemoryError("20 MiB")
        if given.fails == 2 and step == 3:
            raise RuntimeError("a mistake")
        optimizer.step()
    sys.exit(0)


if __name__ == "__main__":
    main()
