"""The health of a training run: gradients, experts, activations, time."""
