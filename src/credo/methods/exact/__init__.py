"""Closed forms and Gaussian processes."""
