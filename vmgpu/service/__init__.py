"""The verbs people ask for. They check, write wishes on rows, and touch no host."""
