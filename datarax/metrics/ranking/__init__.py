"""Ranking, retrieval and recommendation: means over queries."""
