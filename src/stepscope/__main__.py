"""``python -m stepscope``."""

from stepscope.cli.main import command

command()
