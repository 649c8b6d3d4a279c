"""Aggregation: sums, means, extremes, quantiles and rates of any values."""
