"""Vision: image quality, distances of image sets, detection."""
