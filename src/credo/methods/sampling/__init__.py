"""Draws of the posterior itself: Markov chains, particles, weighted draws."""
