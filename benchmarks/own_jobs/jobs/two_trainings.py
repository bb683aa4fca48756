"""A sweep: one script starts two trainings at the same time, each a process of its own."""

import subprocess
import sys
from pathlib import Path


def main():
    command = [sys.executable, str(Path(__file__).with_name("clean_single.py"))]
    trainings = [subprocess.Popen(command) for _ in range(2)]
    sys.exit(max(training.wait() for training in trainings))


if __name__ == "__main__":
    main()
