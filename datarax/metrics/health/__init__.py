"""Metrics of the state of a training run: parameters, gradients, losses, experts, time."""
