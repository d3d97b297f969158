"""What methods share: the model, the ELBO, the training loop, outputs under posterior draws, the
run directory.
"""
