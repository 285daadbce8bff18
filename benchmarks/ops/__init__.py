"""How near each Triton kernel comes to the roofline of the card it runs on, and to the other ways: `benchmarks.ops`."""
