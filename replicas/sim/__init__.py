"""A simulated engine without weights: blocks, scheduling, latency, text. Pure: no clock, no I/O."""
