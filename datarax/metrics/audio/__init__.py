"""Audio: metrics of signals."""
