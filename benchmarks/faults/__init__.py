"""Attacks, kills, full disks and racing writers in one run: what is lost, torn or kept waiting."""
