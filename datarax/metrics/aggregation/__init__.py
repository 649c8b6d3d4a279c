"""Aggregation: sums, means, extremes, quantiles and rates of whatever a step computes."""
