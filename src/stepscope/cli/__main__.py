from stepscope.cli.main import command

command()
