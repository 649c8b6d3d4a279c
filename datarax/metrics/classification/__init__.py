"""Classification from counts by class."""
