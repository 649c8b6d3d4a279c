"""The engine of a metric: updates, arguments, readings, rows, sampling."""
