"""The command line: arguments, preflight checks, and terminal output."""
