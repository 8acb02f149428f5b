"""What we claim about speed, as commands."""
