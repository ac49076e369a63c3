"""Training: a run that can be interrupted anywhere and goes on as if it had not been."""
