"""Curvature of the log-likelihood about the weights, and what linearised networks make of it."""
