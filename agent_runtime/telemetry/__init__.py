"""What a service tells whoever runs it: its log, traces, metrics, and its state to systemd."""
