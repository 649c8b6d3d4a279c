"""Images, and boxes in images."""
