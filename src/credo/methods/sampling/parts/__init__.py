"""What only samplers share: settings, the density of a model, the loop over moves and its schedule,
batches per chain, and the posterior that draws are. No method is imported here.
"""
