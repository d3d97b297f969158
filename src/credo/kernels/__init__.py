"""Moves of chains and particles as pure functions of tensors: trajectories, acceptance, adaptation,
Langevin steps, ladders of temperatures, cooling, Stein forces.

Nothing here knows a model: a kernel is given a target (``log_density.py``), and what the next move
needs are named tuples of tensors.
"""
