"""Commands, child processes, ranks, signals and files: what every other package stands on."""
