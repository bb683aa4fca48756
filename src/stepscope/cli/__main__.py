from stepscope.cli.main import main

main()
