"""The schema's history, oldest first. `HEAD` is what this version of the program needs."""

HEAD = "0001"
