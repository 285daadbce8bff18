"""Log, metrics, traces, and the state that systemd is told."""
