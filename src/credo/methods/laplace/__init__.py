"""A Gaussian from the curvature at a mode."""
