"""What test ranks run: whole processes, which fail and die for real."""
