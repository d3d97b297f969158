"""What samplers share: targets, trajectories, acceptance, adaptation, Langevin steps, Stein forces.

Pure functions of tensors.
"""
