"""The command line of securevfl: the command `securevfl` and its subcommands."""
