"""Attack, kill and damage a running service, and count what is lost or torn."""
